package main

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/apikeel/kelson/request"
)

// TestClocks asks for clocks, from within the process.
func TestClocks(t *testing.T) {
	server := newServer()
	server.Addr = "127.0.0.1:0"
	ctx, cancel := context.WithCancel(t.Context())
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	client := &http.Client{Transport: server.Loopback(request.User{Name: "someone"})}
	get := func(path string, into any) int {
		t.Helper()
		resp, err := client.Get("http://clock/apis/clock.example.com/v1/" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	var list struct{ Items []Clock }
	if code := get("clocks", &list); code != http.StatusOK || len(list.Items) != 3 || list.Items[0].Name != "berlin" {
		t.Errorf("%d %+v", code, list)
	}
	var clock Clock
	before := time.Now().Truncate(time.Microsecond)
	if code := get("clocks/utc", &clock); code != http.StatusOK || clock.Time.Time.Before(before) || clock.Zone != "UTC" {
		t.Errorf("%d %+v", code, clock)
	}
	if code := get("clocks/moon", &clock); code != http.StatusNotFound {
		t.Errorf("the moon: %d", code)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
