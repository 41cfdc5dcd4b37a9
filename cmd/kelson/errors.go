package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/engine"
	"github.com/apikeel/kelson/storage/transfer"
	"github.com/spf13/cobra"
)

// errShown ends the program with an error that was printed already.
var errShown = errors.New("shown")

// usageError is a mistake in the command line.
type usageError struct{ error }

// usage returns a usageError that refers to the help of the command.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf("%w; see '%s --help'", fmt.Errorf(format, args...), cmd.CommandPath())}
}

// explain returns an error as one line, with advice where the error itself has none.
func explain(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	switch {
	case errors.Is(err, context.Canceled):
		return strings.ReplaceAll(text, context.Canceled.Error(), "interrupted")
	case errors.Is(err, transfer.ErrNotSnapshot):
		return text + "; give a file that 'kelson snapshot save' has made"
	case errors.Is(err, transfer.ErrCorrupt):
		return text + "; use another copy of it"
	case errors.Is(err, engine.ErrNotStore) || errors.Is(err, os.ErrNotExist):
		return text + "; check the path"
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
