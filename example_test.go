package kelson_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/apikeel/kelson"
	"github.com/apikeel/kelson/admission"
	"github.com/apikeel/kelson/request"
	"github.com/apikeel/kelson/resource"
)

// A server with one path of its own, asked by its administrator.
func ExampleServer() {
	server := &kelson.Server{
		Addr: "127.0.0.1:0",
		Paths: map[string]http.Handler{"/hello": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintln(w, "hello")
		})},
	}
	// Listening before running tells the address.
	if err := server.Listen(); err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()

	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: server.PKI.Pool(), Certificates: []tls.Certificate{*server.PKI.AdminCertificate()},
	}}}
	resp, err := client.Get(server.URL() + "/hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	fmt.Print(string(body))

	stop()
	fmt.Println(<-ended)
	// Output:
	// hello
	// <nil>
}

// Note is a kind.
type Note struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Text string `json:"text,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (n *Note) DeepCopyObject() runtime.Object { return resource.Copy(n) }

// A server with a kind of one's own, asked from within the process.
func ExampleServer_groups() {
	server := &kelson.Server{Groups: []resource.Group{{Name: "example.com", Resources: []resource.Definition{{
		Group: "example.com", Resource: "notes", Kind: "Note", Namespaced: true,
		Versions: []resource.Version{resource.Plain("v1", func(n *Note) {
			if n.Text == "" {
				n.Text = "empty"
			}
		})},
	}}}}}
	if err := server.PrepareRun(); err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: server.Loopback(request.User{Name: "ann"})}
	resp, err := client.Post("http://kelson/apis/example.com/v1/namespaces/default/notes", "application/json", strings.NewReader(`{"metadata":{"name":"one"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	note, err := server.Objects("example.com", "notes").Get(context.Background(), "default", "one")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(resp.StatusCode, note.(*Note).Text)
	// Output: 201 empty
}

// quiet is an admission plugin that refuses notes which shout.
type quiet struct{}

func (quiet) Name() string { return "Quiet" }

func (quiet) Handles(t admission.Target) bool { return t.Resource == "notes" }

func (quiet) Validate(_ context.Context, a *admission.Attributes) error {
	if note, ok := a.Object.(*Note); ok && note.Text != "" && note.Text == strings.ToUpper(note.Text) {
		return a.Forbidden(errors.New("do not shout"))
	}
	return nil
}

// An admission plugin has a say in what is written.
func ExampleServer_admission() {
	server := &kelson.Server{
		Groups: []resource.Group{{Name: "example.com", Resources: []resource.Definition{{
			Group: "example.com", Resource: "notes", Kind: "Note", Versions: []resource.Version{resource.Plain[Note]("v1", nil)},
		}}}},
		Admission: []admission.Plugin{quiet{}},
	}
	if err := server.PrepareRun(); err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: server.Loopback(request.User{Name: "ann"})}
	for _, text := range []string{"hello", "HELLO"} {
		resp, err := client.Post("http://kelson/apis/example.com/v1/notes", "application/json", strings.NewReader(`{"metadata":{"generateName":"n-"},"text":"`+text+`"}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(text, resp.StatusCode)
	}
	// Output:
	// hello 201
	// HELLO 403
}
