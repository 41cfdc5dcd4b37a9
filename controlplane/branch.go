package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/apikeel/kelson/storage/engine"
)

// A branch is a data folder below the one that it was made from, in the folder branches. It
// has a checkpoint of the store, and copies of the keys and certificates. The process that
// has the store open makes it, in a folder whose name begins with a dot, which is renamed
// when it is complete.

// MaxBranches is how many branches a data folder has at most.
const MaxBranches = 16

const (
	branchesFolder = "branches"
	// partialBranch begins the names of folders of branches that are being made.
	partialBranch = ".new-"
	// temporaryFile marks a branch that goes when nobody serves it.
	temporaryFile = "temporary"
	// staleAfter is how long a temporary branch that nobody has open is left alone: it
	// may be about to be opened.
	staleAfter = 10 * time.Minute
)

// branchName is what a branch may be called: a label of DNS, so that it is one folder.
var branchName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// Branch is a copy of the data of a server.
type Branch struct {
	Name string `json:"name"`
	// DataDir is its data folder.
	DataDir string `json:"dataDir"`
	// Revision is the newest revision that is surely in it.
	Revision int64 `json:"revision"`
	// Took is how long the copy of the store took.
	Took time.Duration `json:"took"`
}

// BranchDir returns the data folder of a branch.
func BranchDir(dataDir, name string) string { return filepath.Join(dataDir, branchesFolder, name) }

// Branch makes a branch of the data folder, whether the server is running or not. It is
// temporary, until Keep is called: if nobody has it open, a later start or branch of the
// server removes it.
func (c Config) Branch(ctx context.Context, name string) (Branch, error) {
	if err := c.complete(); err != nil {
		return Branch{}, err
	}
	if c.Storage != StorageEngine {
		return Branch{}, fmt.Errorf("a branch is a copy of the embedded store, and this server keeps its data %s: save it with 'kelson snapshot save', make a data folder with 'kelson snapshot restore', and serve that", c.describe())
	}
	if err := checkBranchName(name); err != nil {
		return Branch{}, err
	}
	var made Branch
	err := c.withFolder(ctx, http.MethodPost, "/branch?name="+url.QueryEscape(name), func(e *engine.Engine) (err error) {
		made, err = makeBranch(ctx, c.DataDir, e, name)
		return err
	}, func(body io.Reader) error { return json.NewDecoder(body).Decode(&made) })
	made.DataDir = BranchDir(c.DataDir, name) // as this process sees it
	return made, err
}

// Keep makes a branch one that stays.
func (b Branch) Keep() error {
	err := os.Remove(filepath.Join(b.DataDir, temporaryFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Remove removes a branch that nobody has open.
func (b Branch) Remove() error { return removeBranch(b.DataDir) }

func checkBranchName(name string) error {
	if !branchName.MatchString(name) {
		return fmt.Errorf("%q is not the name of a branch: it has at most 40 lower case letters, digits and dashes, and no dash at its ends", name)
	}
	return nil
}

// makeBranch makes a branch. The caller has the store open, and calls it once at a time.
func makeBranch(ctx context.Context, dataDir string, store *engine.Engine, name string) (Branch, error) {
	if err := checkBranchName(name); err != nil {
		return Branch{}, err
	}
	folder := filepath.Join(dataDir, branchesFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return Branch{}, err
	}
	if err := clearBranches(dataDir); err != nil {
		return Branch{}, err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return Branch{}, err
	}
	for _, entry := range entries {
		if entry.Name() == name {
			return Branch{}, fmt.Errorf("there is a branch %s already: choose another name, or remove the folder %s", name, BranchDir(dataDir, name))
		}
	}
	if len(entries) >= MaxBranches {
		return Branch{}, fmt.Errorf("there are %d branches already, and no more are made: remove one of the folders in %s", len(entries), folder)
	}
	partial, err := os.MkdirTemp(folder, partialBranch)
	if err != nil {
		return Branch{}, err
	}
	made := Branch{Name: name, DataDir: BranchDir(dataDir, name)}
	began := time.Now()
	if made.Revision, err = store.Checkpoint(ctx, StoreDir(partial)); err == nil {
		made.Took = time.Since(began)
		err = finishBranch(dataDir, partial, made.DataDir)
	}
	if err != nil {
		return Branch{}, errors.Join(err, os.RemoveAll(partial))
	}
	return made, nil
}

// finishBranch adds keys and certificates to a branch, and gives it its name.
func finishBranch(dataDir, partial, dir string) error {
	for _, name := range []string{"pki", "front-proxy"} {
		if err := copyFiles(filepath.Join(dataDir, name), filepath.Join(partial, name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(partial, temporaryFile), []byte("This branch is removed when nobody serves it.\n"), 0o600); err != nil {
		return err
	}
	if err := syncFolder(partial); err != nil {
		return err
	}
	if err := os.Rename(partial, dir); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(dir))
}

// copyFiles copies the files of a folder, if it is there, for their owner alone.
func copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was replaced meanwhile, and is made anew
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, entry.Name()), content, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return syncFolder(to)
}

// clearBranches removes branches that were not finished, and temporary ones that nobody has
// had open for a while. The caller has the store open, so nobody else makes branches.
func clearBranches(dataDir string) error {
	folder := filepath.Join(dataDir, branchesFolder)
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		dir := filepath.Join(folder, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), partialBranch):
			err = errors.Join(err, os.RemoveAll(dir))
		case isStale(dir):
			if removeErr := removeBranch(dir); !errors.Is(removeErr, engine.ErrLocked) {
				err = errors.Join(err, removeErr)
			}
		}
	}
	return err
}

// isStale reports whether a branch is temporary and was made a while ago.
func isStale(dir string) bool {
	mark, err := os.Stat(filepath.Join(dir, temporaryFile))
	return err == nil && time.Since(mark.ModTime()) > staleAfter
}

// removeBranch removes a branch, unless somebody has its store open. Its store goes first
// and under another name, so that nobody opens what is left of it.
func removeBranch(dir string) error {
	unlock, err := engine.Lock(StoreDir(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	gone := filepath.Join(filepath.Dir(dir), partialBranch+"gone-"+filepath.Base(dir))
	if err = os.Rename(dir, gone); err == nil {
		err = os.RemoveAll(gone)
	}
	if unlock != nil {
		err = errors.Join(err, unlock())
	}
	return err
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
