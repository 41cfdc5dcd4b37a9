package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/transfer"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// errShown ends the program with an error that was printed already.
var errShown = errors.New("shown")

// usageError is a mistake in the command line.
type usageError struct{ error }

// usage returns a usageError that refers to the help of the command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf("%w; see '%s --help'", fmt.Errorf(format, args...), cmd.CommandPath())}
}

// flagError returns the usageError of a flag that cannot be parsed. For a flag that does
// not exist, it names the one that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		if similar := similarFlag(cmd.Flags(), unknown.GetSpecifiedName()); similar != "" {
			return usage(cmd, "%w; did you mean --%s?", err, similar)
		}
	}
	return usage(cmd, "%w", err)
}

// similarFlag returns the flag whose name differs least from a name, or "" if none is
// similar: all differ in more than two letters, dashes and underscores aside.
func similarFlag(fs *pflag.FlagSet, name string) (similar string) {
	const most = 2
	best := most + 1
	letters := strings.NewReplacer("-", "", "_", "").Replace
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		if d := distance(letters(name), letters(f.Name)); d < best {
			similar, best = f.Name, d
		}
	})
	return similar
}

// distance is the number of letters to insert, remove or replace that make one word the
// other (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// firstReason returns the first line of an error that has a reason in it, from there on:
// what was tried many times and failed for one reason is told once. Errors of the API are
// text, so that errors.Is does not find the reason.
func firstReason(err, reason error) string {
	for line := range strings.Lines(err.Error()) {
		if _, rest, ok := strings.Cut(line, reason.Error()); ok {
			return reason.Error() + strings.TrimSpace(rest)
		}
	}
	return ""
}

// explain returns an error as one line, with advice where the error itself has none.
func explain(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, context.Canceled):
		return strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
	case errors.Is(err, transfer.ErrNotSnapshot):
		return text + "; give a file that 'kelson snapshot save' has made"
	case errors.Is(err, transfer.ErrCorrupt):
		return text + "; use another copy of it"
	case errors.Is(err, engine.ErrNotStore) || errors.Is(err, os.ErrNotExist):
		return text + "; check the path"
	case firstReason(err, storage.ErrNoSpace) != "":
		return firstReason(err, storage.ErrNoSpace)
	case errors.Is(err, engine.ErrNewerFormat):
		return text + ", or restore a snapshot that this version has made into another folder"
	case errors.Is(err, syscall.EADDRINUSE):
		return text + "; --secure-port is the flag"
	case errors.Is(err, syscall.EROFS):
		return text + "; mount the disk for writing, or name another folder with --data-dir"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return text + "; compare the clock of this machine with that of the server; if both are right, the certificate has ended: see 'kelson doctor'"
	case errors.Is(err, os.ErrPermission) && strings.Contains(text, "bind:"):
		return text
	case errors.Is(err, os.ErrPermission):
		return text + "; check who owns it, and who you are"
	case errors.Is(err, storage.ErrUnavailable):
		if strings.Contains(text, "postgres:") {
			return text + "; is PostgreSQL running there, and can it be reached from here?"
		}
		return text + "; is etcd running there, and can it be reached from here?"
	}
	return text
}
