// Package examples holds no code, only the test that keeps the examples short.
package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLines(t *testing.T) {
	for folder, most := range map[string]int{"wardle": 250, "clock": 80} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		lines := 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines += bytes.Count(text, []byte("\n"))
		}
		if lines >= most {
			t.Errorf("%s has %d lines: it is to show how few are needed, which is fewer than %d", folder, lines, most)
		}
	}
}
