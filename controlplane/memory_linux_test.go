package controlplane

import (
	"os"
	"slices"
	"testing"
)

func TestProgramMappings(t *testing.T) {
	smaps := []byte(`00400000-00402000 r--p 00000000 fe:00 99 /bin/kelson
Size:                  8 kB
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
00402000-00403000 r-xp 00002000 fe:00 99 /bin/kelson
Rss:                   4 kB
Anonymous:             0 kB
00403000-00404000 r--p 00003000 fe:00 99 /bin/kelson
Rss:                   4 kB
Anonymous:             4 kB
00404000-00405000 rw-p 00004000 fe:00 99 /bin/kelson
Rss:                   4 kB
Anonymous:             0 kB
7f00409d5000-7f0040b2b000 r-xp 00026000 fe:00 32 /usr/lib/libc.so.6
Rss:                   4 kB
Anonymous:             0 kB
7fff00000000-7fff00001000 r-xp 00000000 00:00 0
Anonymous:             0 kB
`)
	want := []mapping{{0x400000, 0x402000, 4096}, {0x402000, 0x403000, 4096}}
	got, huge := programMappings(smaps, "/bin/kelson")
	if !slices.Equal(got, want) || huge {
		t.Errorf("%x, %v, want %x", got, huge, want)
	}
	_, huge = programMappings(append(smaps, "00406000-00606000 r-xp 00006000 fe:00 99 /bin/kelson\nFilePmdMapped: 2048 kB\n"...), "/bin/kelson")
	if !huge {
		t.Error("huge pages are overlooked")
	}
}

// A program goes on without its pages.
func TestForgetProgram(t *testing.T) {
	before := residentFiles()
	if err := forgetProgram(false); err != nil {
		t.Fatal(err)
	}
	if after := residentFiles(); after >= before || after < 64<<10 {
		t.Errorf("%d bytes of files in memory after it, %d before", after, before)
	}
	if _, err := os.Stat("/proc/self/exe"); err != nil {
		t.Error(err)
	}
}

// TestForgetAfter checks that a busy server spends little on looking for its program: it does it
// every moment while that is cheap, and every minute with a heap of gigabytes.
func TestForgetAfter(t *testing.T) {
	for live, want := range map[uint64]int{0: 1, 100 << 20: 1, 130 << 20: 2, 8 << 30: 12} {
		if got := forgetAfter(heapUse{live: live}); got != want {
			t.Errorf("with %d bytes in use: every %d moments, want %d", live, got, want)
		}
	}
}
