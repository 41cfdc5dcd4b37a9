package main

import (
	"bytes"
	"os"
	"testing"
)

// TestFresh fails if client-go was updated and the types were not.
func TestFresh(t *testing.T) {
	source, err := applySchema()
	if err != nil {
		t.Fatal(err)
	}
	want, err := encode(source + more)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../types.txt")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("types.txt is not what client-go has: run go generate ./managedfields")
	}
}
