package kelson_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"

	"github.com/apikeel/kelson"
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
