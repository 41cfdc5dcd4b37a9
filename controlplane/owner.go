package controlplane

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Unsafe is a file or folder that somebody else than the user of the server could change,
// or has made.
type Unsafe struct {
	Path, Reason string
	// Remedy is a command.
	Remedy string
}

// ownedFolders are the folders of a data folder whose files are looked at: what is in them the
// server trusts, keys above all.
var ownedFolders = []string{"", "pki", "front-proxy", "control", "store", filepath.Join("store", "db")}

// process is who asks: a user, and its groups.
type process struct {
	user   int
	groups []int
}

// ownership is what says who may change a file.
type ownership struct {
	user, group int
	mode        fs.FileMode
	// mount: the folder is the root of a file system, as volumes of containers are.
	mount bool
}

// FindUnsafe returns what is unsafe in a data folder, and above it. If foreign is set, root judges as
// the owner of the folder would, which is that of a service. Nothing is unsafe in a folder that is
// not there.
//
// Safe is what belongs to the user of the process, or to root, and what nobody else can write to. A
// group can if it is of the user alone (number and user are the same), or if it was given the volume
// (sharedGroup). The modes of files in a folder that nobody else can enter do not matter: they are
// what the umask has left, of files that the server has made.
func FindUnsafe(dataDir string, foreign bool) (found []Unsafe) {
	dir, err := filepath.Abs(dataDir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil // who opens it says what is wrong
	}
	who := currentProcess()
	own, ok := ownershipOf(dir)
	if !ok {
		return nil
	}
	if foreign && who.user == 0 {
		who = process{user: own.user, groups: []int{own.group}}
	}
	shared := who.sharedGroup(dir)
	look := func(path string, closed bool) {
		if own, ok := ownershipOf(path); ok {
			if closed && !own.mode.IsDir() {
				own.mode &^= 0o022
			}
			if reason, remedy := who.judge(own, shared); reason != "" {
				found = append(found, Unsafe{path, reason, remedy + " " + path})
			}
		}
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if own, ok := ownershipOf(parent); ok && own.mode.Perm()&0o002 != 0 && own.mode&fs.ModeSticky == 0 && !own.isVolume() {
			found = append(found, Unsafe{parent, "is writable by all, who can replace what is in it", "chmod o-w " + parent})
		}
		if parent == filepath.Dir(parent) {
			break
		}
	}
	look(dir, false)
	for _, name := range ownedFolders {
		folder, closed := filepath.Join(dir, name), own.isClosed()
		for at := folder; at != dir && !closed; at = filepath.Dir(at) {
			own, _ := ownershipOf(at)
			closed = own.isClosed()
		}
		entries, err := os.ReadDir(folder)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			look(filepath.Join(folder, entry.Name()), closed)
		}
	}
	return found
}

// isVolume reports whether a folder is one that root has mounted, in a container mostly: it is writable by
// all, and the container's processes are all who see it.
func (o ownership) isVolume() bool { return o.user == 0 && o.mount }

// isClosed reports whether only the owner of a folder, and root, can enter it.
func (o ownership) isClosed() bool { return o.mode.IsDir() && o.mode.Perm()&0o011 == 0 }

// sharedGroup returns the group of the process that Kubernetes has given a volume (fsGroup), -1 if
// there is none: that of a folder with the bit that hands its group down, if root has made the folder, or
// if it is the root of the volume. The data folder is this folder or in it.
func (p process) sharedGroup(dir string) int {
	for {
		own, ok := ownershipOf(dir)
		trusted := own.user == 0 || own.mount && own.user == p.user
		if ok && trusted && own.mode.IsDir() && own.mode&fs.ModeSetgid != 0 && slices.Contains(p.groups, own.group) {
			return own.group
		}
		parent := filepath.Dir(dir)
		if !ok || own.mount || parent == dir {
			return -1
		}
		dir = parent
	}
}

// judge returns why a file is unsafe, and what mends that, without its name. shared is a
// group that may write.
func (p process) judge(o ownership, shared int) (reason, remedy string) {
	switch {
	case o.user != p.user && o.user != 0:
		return fmt.Sprintf("belongs to user %d, and this process is user %d: what is in it may be known to others, and changed by them", o.user, p.user), fmt.Sprintf("if you trust what is in it: chown -R %d", p.user)
	case o.mode&fs.ModeSymlink != 0 || o.isVolume():
		return "", ""
	case o.mode.Perm()&0o002 != 0:
		return fmt.Sprintf("is writable by all (mode %04o)", o.mode.Perm()), "if you trust what is in it: chmod -R go-w"
	case o.mode.Perm()&0o020 != 0 && o.group != shared && !(o.group == p.user && slices.Contains(p.groups, o.group)):
		return fmt.Sprintf("is writable by group %d (mode %04o)", o.group, o.mode.Perm()), "if you trust what is in it: chmod -R g-w"
	}
	return "", ""
}

// checkOwner refuses a data folder that is unsafe.
func (c *Config) checkOwner() error {
	if !c.keeps() {
		return nil
	}
	found := FindUnsafe(c.DataDir, false)
	if len(found) == 0 {
		return nil
	}
	more := ""
	if len(found) > 1 {
		more = fmt.Sprintf("; so are %d more files: 'kelson doctor' names them", len(found)-1)
	}
	return fmt.Errorf("the data folder %s is unsafe: %s %s (%s)%s", c.DataDir, found[0].Path, found[0].Reason, found[0].Remedy, more)
}
