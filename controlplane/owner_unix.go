//go:build unix

package controlplane

import (
	"os"
	"path/filepath"
	"syscall"
)

func currentProcess() process {
	groups, _ := os.Getgroups()
	return process{user: os.Geteuid(), groups: append(groups, os.Getegid())}
}

// ownershipOf returns the ownership of a file; ok is false if it is not there.
func ownershipOf(path string) (o ownership, ok bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return o, false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return o, false
	}
	o = ownership{user: int(stat.Uid), group: int(stat.Gid), mode: info.Mode()}
	if parent, err := os.Lstat(filepath.Dir(path)); err == nil && info.IsDir() {
		above, _ := parent.Sys().(*syscall.Stat_t)
		o.mount = above.Dev != stat.Dev
	}
	return o, true
}
