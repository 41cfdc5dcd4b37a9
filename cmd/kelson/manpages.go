package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newManPages returns the hidden command that writes man pages, which packages contain.
// Pages are made from the commands when a package is built, so they are never out of date.
func newManPages() *cobra.Command {
	return &cobra.Command{
		Use:    "man-pages FOLDER",
		Short:  "Write a man page for each command",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			for name, text := range manPages(cmd.Root()) {
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(text), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// manPages returns the pages of a command and of those below it that are shown in the
// help, by file name.
func manPages(cmd *cobra.Command) map[string]string {
	pages := map[string]string{pageName(cmd) + ".1": manPage(cmd)}
	for _, sub := range cmd.Commands() {
		if !sub.IsAvailableCommand() || sub.Name() == "help" {
			continue
		}
		for name, text := range manPages(sub) {
			pages[name] = text
		}
	}
	return pages
}

// pageName is the path of a command with dashes: kelson-snapshot-save.
func pageName(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

// manPage returns the page of one command in roff.
func manPage(cmd *cobra.Command) string {
	var page strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&page, format+"\n", args...) }
	line(`.TH "%s" "1" "" "Kelson" "Kelson"`, strings.ToUpper(pageName(cmd)))
	line(".SH NAME")
	line(`%s \- %s`, roff(pageName(cmd)), roff(cmd.Short))
	line(".SH SYNOPSIS")
	if cmd.Runnable() {
		line("%s", roff(cmd.UseLine()))
	}
	if cmd.HasAvailableSubCommands() {
		line(".br")
		line("%s COMMAND", roff(cmd.CommandPath()))
	}
	if cmd.Long != "" {
		line(".SH DESCRIPTION")
		line("%s", roff(cmd.Long))
	}
	for _, topic := range topics(cmd.LocalFlags()) {
		line(".SH %s", strings.ToUpper(roff(topic.title)))
		topic.flags.VisitAll(func(f *pflag.Flag) {
			line(".TP")
			value, usage := pflag.UnquoteUsage(f)
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "-" + f.Shorthand + ", " + name
			}
			if value != "" {
				value = " " + value
			}
			line(`\fB%s\fR%s`, roff(name), roff(value))
			if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" && !strings.Contains(usage, "default") {
				usage += " (default " + f.DefValue + ")"
			}
			line("%s", roff(usage))
		})
	}
	if cmd.Example != "" {
		line(".SH EXAMPLES")
		line(".nf")
		line("%s", roff(cmd.Example))
		line(".fi")
	}
	line(".SH SEE ALSO")
	var also []string
	if cmd.HasParent() {
		also = append(also, fmt.Sprintf(`\fB%s\fR(1)`, roff(pageName(cmd.Parent()))))
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			also = append(also, fmt.Sprintf(`\fB%s\fR(1)`, roff(pageName(sub))))
		}
	}
	line("%s", strings.Join(also, ", "))
	return page.String()
}

// roff escapes text: backslashes, dashes, and what is a request at the start of a line.
// An empty line begins a paragraph.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		switch {
		case line == "":
			lines[i] = ".PP"
		case line[0] == '.' || line[0] == '\'':
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
