package main

import (
	"os"
	"slices"
	"testing"
)

// The table and the targets are found: an hour of nothing would pass, too.
func TestHourFindsItsParts(t *testing.T) {
	root := os.DirFS("../../..")
	targets, err := fuzzTargets("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(targets, func(t target) bool { return t.name == "FuzzConnection" }) || len(targets) < 40 {
		t.Errorf("%d fuzz targets, want at least 40, and FuzzConnection among them", len(targets))
	}
	page, err := root.(interface{ ReadFile(string) ([]byte, error) }).ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	if tests := attackTests(string(page)); !slices.Contains(tests["./connect"], "TestEndlessAnswersToUpgradesAreBrokenOff") || len(tests) < 8 {
		t.Errorf("tests of %d packages, want of at least 8, and of ./connect: %v", len(tests), tests)
	}
}
