package main

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// smallPages has the kernel map the program's code in small pages, as they are needed.
// Where it happens to have the file in huge ones, 2 MB count as used for every
// function that runs, which is 20 MB for a server at rest; the server is not faster
// with them. What fails here costs memory only.
func smallPages() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		// begin-end access offset device inode path
		area, rest, _ := strings.Cut(lines.Text(), " ")
		if !strings.HasPrefix(rest, "r-xp") || !strings.HasSuffix(rest, " "+program) {
			continue
		}
		first, last, _ := strings.Cut(area, "-")
		begin, err1 := strconv.ParseUint(first, 16, 64)
		end, err2 := strconv.ParseUint(last, 16, 64)
		if err1 != nil || err2 != nil {
			return
		}
		for _, advice := range []uintptr{unix.MADV_NOHUGEPAGE, unix.MADV_DONTNEED} {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), advice)
		}
	}
}
