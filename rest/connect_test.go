package rest

import (
	"encoding/json"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestDecodeOptions(t *testing.T) {
	for _, test := range []struct {
		query   string
		options runtime.Object
		want    string
	}{
		{"command=a&command=b&stdin=1&tty=false&stdout=maybe&container=c&other=x", &corev1.PodExecOptions{}, `{"stdin":true,"stdout":true,"container":"c","command":["a","b"]}`},
		{"", &corev1.PodExecOptions{}, `{"command":null}`},
		{"follow=0&tailLines=5&sinceTime=2024-01-02T03:04:05Z&stream=All", &corev1.PodLogOptions{}, `{"sinceTime":"2024-01-02T03:04:05Z","tailLines":5,"stream":"All"}`},
		{"tailLines=", &corev1.PodLogOptions{}, `strconv.ParseInt: parsing "": invalid syntax`},
		{"sinceTime=x", &corev1.PodLogOptions{}, `parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"`},
		{"ports=1,2&ports=3", &corev1.PodPortForwardOptions{}, `{"ports":[1,2,3]}`},
		{"ports=70000", &corev1.PodPortForwardOptions{}, `cannot convert to []int32: strconv.ParseUint: parsing "70000": value out of range`},
		{"path=/a/b", &corev1.NodeProxyOptions{}, `{"path":"/a/b"}`},
	} {
		query, err := url.ParseQuery(test.query)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := decodeOptions(query, test.options); err != nil {
			got = err.Error()
		} else if b, err := json.Marshal(test.options); err == nil {
			got = string(b)
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.query, got, test.want)
		}
	}
}
