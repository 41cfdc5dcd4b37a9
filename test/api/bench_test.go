package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/apikeel/kelson/kelsontest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
	asProtobuf = "application/vnd.kubernetes.protobuf"
)

// benchPods are what lists are measured with.
const benchPods = 2000

// BenchmarkList reads all of many pods, over TLS and HTTP/2, as a client that
// throws the answer away.
func BenchmarkList(b *testing.B) {
	client, url := podsFor(b)
	for _, form := range []struct{ name, accept, query string }{
		{"json", "application/json", ""},
		{"protobuf", asProtobuf, ""},
		{"table", asTable, ""},
		{"metadata-json", asMetadata, ""},
		{"metadata-protobuf", asProtobuf + asMetadata[len("application/json"):], ""},
		{"label", "application/json", "labelSelector=pick%3Dyes"},
	} {
		b.Run(form.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.SetBytes(fetch(b, client, url+"?"+form.query, form.accept, nil))
			}
		})
	}
	b.Run("streaming", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.SetBytes(fetch(b, client, url+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
				"application/json", []byte("initial-events-end")))
		}
	})
}

// BenchmarkGet reads one object, and the same bytes from a handler that does
// nothing else: the limit.
func BenchmarkGet(b *testing.B) {
	server := kelsontest.Start(b)
	cfg := server.Config()
	if _, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Pods("default").Create(b.Context(), benchPod(1), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		b.Fatal(err)
	}
	url := server.URL() + "/api/v1/namespaces/default/pods/pod-000001"
	resp, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("pod", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fetch(b, client, url, "application/json", nil)
		}
	})

	bare := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	bare.EnableHTTP2 = true
	bare.StartTLS()
	b.Cleanup(bare.Close)
	b.Run("bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			fetch(b, bare.Client(), bare.URL, "application/json", nil)
		}
	})
}

// fetch reads an answer to its end, or up to the piece that has the text. It
// returns how many bytes that were.
func fetch(b *testing.B, client *http.Client, url, accept string, until []byte) (n int64) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b.Fatal(resp.Status)
	}
	buf := make([]byte, 64<<10)
	for {
		m, err := resp.Body.Read(buf)
		n += int64(m)
		switch {
		case until != nil && bytes.Contains(buf[:m], until), err == io.EOF && until == nil:
			return n
		case err != nil:
			b.Fatal(err)
		}
	}
}

// podsFor starts a server with many pods.
func podsFor(b *testing.B) (*http.Client, string) {
	server := kelsontest.Start(b)
	cfg := server.Config()
	pods := kubernetes.NewForConfigOrDie(cfg).CoreV1().Pods("default")
	for i := range benchPods {
		if _, err := pods.Create(b.Context(), benchPod(i), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return client, server.URL() + "/api/v1/namespaces/default/pods"
}

// benchPod is a pod of an ordinary size.
func benchPod(i int) *corev1.Pod {
	no, yes, user := false, true, int64(10001)
	pick := "no"
	if i%100 == 0 {
		pick = "yes"
	}
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.com/shop/" + name + ":v2.14.3",
			Args:  []string{"--listen=:8080", "--config=/etc/storefront/config.yaml", "--log-format=json"},
			Ports: []corev1.ContainerPort{{Name: "http-" + name, ContainerPort: 8000 + int32(len(name))}},
			Env:   []corev1.EnvVar{{Name: "CACHE_SIZE", Value: "256Mi"}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("256Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("512Mi")},
			},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/storefront", ReadOnly: true}},
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("pod-%06d", i), Namespace: "default",
			Labels:      map[string]string{"app.kubernetes.io/name": "storefront", "pod-template-hash": "6d4b75cb6d", "pick": pick},
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": "9102"},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: &no,
			SecurityContext:              &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user},
			Containers:                   []corev1.Container{container("web"), container("metrics")},
			Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
				ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "storefront-config"}},
			}}},
		},
	}
}
