//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// feed gives a body to a check in pieces of some bytes and returns what is wrong.
func feed(c bodyCheck, body []byte, size int) error {
	for len(body) > 0 && !c.isDone() {
		n := min(size, len(body))
		c.write(body[:n])
		body = body[n:]
	}
	return c.finish()
}

// protobufList encodes Secrets as a server does.
func protobufList(t *testing.T, items int) []byte {
	t.Helper()
	list := corev1.SecretList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "SecretList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for range items {
		list.Items = append(list.Items, corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}, Data: map[string][]byte{"value": bytes.Repeat([]byte{2, 18}, 500)},
		})
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme, scheme).Encode(&list, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestChecksTellCompleteAnswersFromOthers(t *testing.T) {
	list := []byte(`{"kind":"List","items":[{"metadata":{"uid":"1"}},{"metadata":{"uid":"2"}}]}` + "\n")
	encoded := protobufList(t, 2)
	initial := []byte(`{"type":"ADDED","object":{"metadata":{"uid":"1"}}}` + "\n" + `{"type":"ADDED","object":{"metadata":{"uid":"2"}}}` + "\n" +
		`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n")
	for _, c := range []struct {
		name  string
		check func() bodyCheck
		body  []byte
		want  string // in the error; empty for none
	}{
		{"JSON", func() bodyCheck { return newListCheck(2) }, list, ""},
		{"JSON without an item", func() bodyCheck { return newListCheck(3) }, list, "2 items of 3"},
		{"JSON that is cut", func() bodyCheck { return newListCheck(2) }, list[:len(list)-3], "JSON begins"},
		{"no JSON", func() bodyCheck { return newListCheck(0) }, nil, "JSON begins"},
		{"protobuf", func() bodyCheck { return newProtobufCheck(2) }, encoded, ""},
		{"protobuf without an item", func() bodyCheck { return newProtobufCheck(3) }, encoded, "2 items of 3"},
		{"protobuf that is cut", func() bodyCheck { return newProtobufCheck(2) }, encoded[:len(encoded)-20], "ends within"},
		{"protobuf with more behind it", func() bodyCheck { return newProtobufCheck(2) }, append(bytes.Clone(encoded), 0x08, 1, 1), "wire type"},
		{"no protobuf", func() bodyCheck { return newProtobufCheck(2) }, list, "begins with"},
		{"initial events", func() bodyCheck { return newInitialEventsCheck(2) }, initial, ""},
		{"initial events without one", func() bodyCheck { return newInitialEventsCheck(3) }, initial, "2 items of 3"},
		{"initial events that do not end", func() bodyCheck { return newInitialEventsCheck(2) }, initial[:len(initial)-40], "no end"},
		{"gzip", func() bodyCheck { return &gzipCheck{} }, []byte("\x1f\x8b and more"), ""},
		{"no gzip", func() bodyCheck { return &gzipCheck{} }, list, "begins with"},
	} {
		for _, size := range []int{1, 2, 3, 7, 64, 1 << 20} {
			err := feed(c.check(), c.body, size)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %d bytes at a time: got error %v, want %q", c.name, size, err, c.want)
			}
		}
	}
}

func TestVerdictNamesEveryFault(t *testing.T) {
	good := func() *result {
		return &result{
			Server: "kelson", Scenario: "list-json", Clients: 1, Limit: 1 << 29, Outcome: survived, readsAll: true, Throughput: 80,
			Answers: &answers{Complete: 1}, Honest: &answers{}, Admin: latency{Asked: 100, P99: 20}, Health: latency{Asked: 10},
		}
	}
	free := good()
	free.Limit, free.Throughput = 0, 100
	for _, c := range []struct {
		change func(*result)
		want   string // in the error; empty for none
	}{
		{func(*result) {}, ""},
		{func(r *result) { r.Outcome = "kelson killed, out of memory" }, "out of memory"},
		{func(r *result) { r.Answers.Broken = 1 }, "1 broken answers"},
		{func(r *result) { r.Answers.Broken, r.readsAll = 1, false }, ""},
		{func(r *result) { r.Honest.Broken = 2 }, "2 broken answers to those who read"},
		{func(r *result) { r.Answers.Complete = 0 }, "no complete answer"},
		{func(r *result) { r.Admin.Failed = 3 }, "3 of 100 writes"},
		{func(r *result) { r.Admin.P99 = 251 }, "p99 is 251 ms"},
		{func(r *result) { r.Health.Failed = 1 }, "1 of 10 health checks"},
		{func(r *result) { r.Throughput = 69 }, "less than 70% of 100"},
	} {
		r := good()
		c.change(r)
		err := verdict([]*result{r, free}, 250*time.Millisecond, 0.7)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

func TestFlagsAreRead(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"", ""},
		{"-scenario all -clients 16,64 -limit 512Mi,none", ""},
		{"-scenario nope", `no "nope"`},
		{"-clients 0", "not a positive number"},
		{"-limit many", "not a number of bytes"},
		{"-etcd /bin/etcd", "must be given together"},
		{"-users 1000", "1 to 64"},
	} {
		_, err := parse(strings.Fields(c.args), new(bytes.Buffer))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got error %v, want %q", c.args, err, c.want)
		}
	}
	for text, want := range map[string]int64{"512Mi": 512 << 20, "2Gi": 2 << 30, "10Ki": 10 << 10, "7": 7, "none": 0} {
		if got, err := parseBytes(text); got != want || err != nil {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
}

func TestReportShowsWhatHappened(t *testing.T) {
	var text bytes.Buffer
	if err := writeTable(&text, []*result{{
		Server: "kelson", Scenario: "slow", Clients: 64, Limit: 512 << 20, Outcome: "kelson killed, out of memory, after 3.0 s", Recovery: -1,
		Answers: &answers{Unfinished: 64}, Honest: &answers{Complete: 7, Broken: 1, Reasons: map[string]int{"unexpected EOF": 1}},
		Admin: latency{Asked: 60, Failed: 2, P50: 1, P99: 20, Max: 30}, PeakRSS: 500 << 20, Log: "the last words",
	}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 512 MiB |", "| 0 + 7 ", "| 64 + 0 ", "killed, out of memory, after 3.0 s", "2 of 60", "1.0 / 20 / 30", "0 / 500 / 0", "1  unexpected EOF", "the last words"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("got a report without %q:\n%s", want, &text)
		}
	}
}
