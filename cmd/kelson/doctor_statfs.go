//go:build linux || darwin

package main

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// freeSpace returns how many bytes a user may still write to the disk of a folder.
func freeSpace(dir string) (int64, bool) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, false
	}
	return int64(stat.Bavail) * int64(stat.Bsize), true
}

// openFiles returns how many files a process may open. The Go runtime raises the soft
// limit to the hard one.
func openFiles() (int64, bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return int64(limit.Max), true
}

// isOwner reports whether a file belongs to the user of this process.
func isOwner(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || int(stat.Uid) == os.Geteuid()
}
