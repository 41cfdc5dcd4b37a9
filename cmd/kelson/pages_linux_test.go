package main

import (
	"os"
	"strings"
	"testing"
)

func TestSmallPages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the kernel has no huge pages")
	}
	smallPages()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	areas, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	code := false
	for line := range strings.Lines(string(areas)) {
		line = strings.TrimSuffix(line, "\n")
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && code {
			if !strings.Contains(flags+" ", " nh ") {
				t.Errorf("the code may be in huge pages:%s", flags)
			}
			return
		}
		code = code || strings.Contains(line, " r-xp ") && strings.HasSuffix(line, " "+program)
	}
	t.Error("nothing is known of the program's code")
}
