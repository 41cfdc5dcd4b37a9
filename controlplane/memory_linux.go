package controlplane

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// forgetProgram takes the pages of the program's own code and constants out of
// the process, most of which only the start has needed. They stay in the page
// cache, from which those in use come back a few at a time.
//
// A program that was linked a moment ago is the exception. It lies in the page
// cache in pieces of megabytes, which are mapped whole, so that it would be back
// after a few calls, with 20 MB that nobody needs. It leaves the cache as well, once,
// and comes back from the disk in small pieces. A busy server does not wait for that, and
// keeps what requests of a few kinds need: it would be back within moments.
func forgetProgram(busy bool) error {
	if busy && residentFiles() < worthForgetting {
		return nil
	}
	program, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer program.Close()
	name, err := os.Executable()
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	var size, resident uintptr
	mappings, huge := programMappings(smaps, name)
	for _, m := range mappings {
		size += m.end - m.start
		resident += m.resident
	}
	whole := !busy && (resident > size/4*3 || huge)
	if whole {
		// What is not on disk yet would stay.
		if err := unix.Fdatasync(int(program.Fd())); err != nil {
			return os.NewSyscallError("fdatasync", err)
		}
	}
	advice := unix.MADV_DONTNEED
	if whole {
		advice = unix.MADV_PAGEOUT
	}
	for _, m := range mappings {
		// It is no memory of Go's, and has no other name than its address.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, uintptr(advice)); errno != 0 {
			return os.NewSyscallError("madvise", errno)
		}
	}
	return nil
}

// worthForgetting is how much of files a busy server may have mapped in memory.
const worthForgetting = 28 << 20

// residentFiles returns how many bytes of files are mapped in memory, nearly all of which are the
// program's. If that is not known, it is as much as there can be.
func residentFiles() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 2 { // size, resident, shared, …, in pages
		if pages, err := strconv.ParseInt(fields[2], 10, 64); err == nil {
			return pages * int64(os.Getpagesize())
		}
	}
	return math.MaxInt64
}

// mapping is a part of a process's memory, of which some is there.
type mapping struct{ start, end, resident uintptr }

// programMappings finds in the text of an smaps file the mappings of a program
// that nothing was ever written to: what the linker has changed at the start and
// made read-only then would be lost. huge tells whether some is in huge pages.
func programMappings(smaps []byte, program string) (found []mapping, huge bool) {
	var m mapping
	var ours bool
	for line := range bytes.Lines(smaps) {
		// Most lines tell of something else, and all of them together are long.
		if upper := line[0] >= 'A' && line[0] <= 'Z'; upper && !bytes.HasPrefix(line, []byte("Rss:")) &&
			!bytes.HasPrefix(line, []byte("Anonymous:")) && !bytes.HasPrefix(line, []byte("FilePmdMapped:")) {
			continue
		}
		fields := strings.Fields(string(line))
		switch {
		case len(fields) < 3:
		case !strings.HasSuffix(fields[0], ":"):
			_, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end)
			ours = err == nil && len(fields) == 6 && fields[5] == program && (fields[1] == "r-xp" || fields[1] == "r--p")
		case fields[0] == "Rss:":
			kB, _ := strconv.Atoi(fields[1])
			m.resident = uintptr(kB) << 10
		case ours && fields[0] == "Anonymous:" && fields[1] == "0":
			found = append(found, m)
		case ours && fields[0] == "FilePmdMapped:" && fields[1] != "0":
			huge = true
		}
	}
	return found, huge
}
