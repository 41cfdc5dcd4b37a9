package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFresh fails if the clients were updated and the types were not.
func TestFresh(t *testing.T) {
	source, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	want, err := encode(source)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../types.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("types.txt is not what the clients have: run go generate ./managedfields")
	}
}
