package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage/engine"
)

// shownLost is how many lines of what is lost the text names.
const shownLost = 1000

// runSalvage writes what can be read of the store in a data folder into another data folder,
// and says what is lost.
func runSalvage(ctx context.Context, out io.Writer, from, to string) error {
	salvaged, err := engine.Salvage(ctx, controlplane.StoreDir(from), controlplane.StoreDir(to))
	if errors.Is(err, engine.ErrLocked) {
		return fmt.Errorf("a server runs on %s; stop it first: %w", from, err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Wrote %d keys to %s; it goes on at revision %d. %s is as it was.\n", salvaged.Keys, to, salvaged.Revision, from)
	if len(salvaged.Lost) == 0 {
		fmt.Fprintln(out, "Nothing is lost.")
	}
	for i, lost := range salvaged.Lost {
		if i == shownLost {
			fmt.Fprintf(out, "lost: and %d more\n", len(salvaged.Lost)-shownLost)
			break
		}
		fmt.Fprintf(out, "lost: %s\n", lost)
	}
	_, err = fmt.Fprintf(out, "Copy all else of %s, its certificates above all, to %s before a server starts there.\n",
		from, to)
	return err
}
