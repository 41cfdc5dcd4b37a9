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

// errShown ends the program with an error that was shown already.
var errShown = errors.New("shown")

// usageError is an error of whoever typed the command.
type usageError struct{ error }

// usage returns a usageError that says where to look the command up.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return usageError{fmt.Errorf("%w; see '%s --help'", fmt.Errorf(format, args...), cmd.CommandPath())}
}

// explain returns an error as one line, with what to do about it where the
// error itself does not say.
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
		return text + "; is etcd running there, and can it be reached from here?"
	}
	return text
}
