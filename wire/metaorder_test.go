package wire

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOrderMetadata(t *testing.T) {
	for name, meta := range map[string]string{
		"usual": `{"annotations":{"b":"c","z":""},"creationTimestamp":"2024-01-01T00:00:00Z","generation":2,"labels":{"a":"}\""},"managedFields":[` +
			`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}},"manager":"m","operation":"Update","subresource":"status","time":"2024-01-01T00:00:00Z"},` +
			`{"apiVersion":"v1","manager":"n","operation":"Apply"}],"name":"x","ownerReferences":[` +
			`{"apiVersion":"v1","blockOwnerDeletion":true,"controller":true,"kind":"K","name":"n","uid":"u"}],"resourceVersion":"5","uid":"u"}`,
		"empty":            `{}`,
		"null":             `{"creationTimestamp":null,"name":"x"}`,
		"empty values":     `{"finalizers":[],"labels":{},"generation":0,"name":"x"}`,
		"false":            `{"name":"x","ownerReferences":[{"apiVersion":"v1","controller":false,"kind":"K","name":"n","uid":"u"}]}`,
		"null in a list":   `{"name":"x","ownerReferences":[null]}`,
		"unknown":          `{"name":"x","other":1}`,
		"twice":            `{"name":"x","name":"y"}`,
		"one that escapes": `{"annotations":{"a":"\u003c\\"},"name":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			var m metav1.ObjectMeta
			if err := json.Unmarshal([]byte(meta), &m); err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := orderMetadata([]byte(meta)); err != nil || string(got) != string(want) {
				t.Errorf("%s, %v, want\n%s", got, err, want)
			}
		})
	}
	for _, broken := range []string{``, `{`, `{"name"`, `{"name":"x"`, `{"managedFields":[{]}`, `[]`, `{"name":"x"}}`} {
		if got, err := orderMetadata([]byte(broken)); err == nil {
			t.Errorf("%s becomes %s", broken, got)
		}
	}
}

func BenchmarkOrderMetadata(b *testing.B) {
	meta := []byte(`{"annotations":{"b":"c"},"creationTimestamp":"2024-01-01T00:00:00Z","generation":2,"managedFields":[` +
		`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{".":{},"f:a":{},"f:b":{},"f:c":{}}},"manager":"m","operation":"Update","time":"2024-01-01T00:00:00Z"}],` +
		`"name":"x","namespace":"default","resourceVersion":"5","uid":"98f4cba1-7c47-4d40-9e2c-17d854001846"}`)
	for b.Loop() {
		if _, err := orderMetadata(meta); err != nil {
			b.Fatal(err)
		}
	}
}
