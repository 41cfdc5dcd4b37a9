package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	// topicNote is the annotation of a flag with its heading in the help.
	topicNote = "topic"
	// commonTopic is the heading that the help of the root command shows too.
	commonTopic = "Common flags"
	helpWidth   = 110
)

// addTopic adds flags under a heading.
func addTopic(to *pflag.FlagSet, title string, bind func(*pflag.FlagSet)) {
	fs := pflag.NewFlagSet(title, pflag.ContinueOnError)
	fs.SortFlags = false
	bind(fs)
	fs.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{topicNote: {title}} })
	to.AddFlagSet(fs)
}

// showHelp prints the help of a command. What a new user needs is on the first screen.
func showHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(w, "%s\n\n", about)
	_ = showUsage(w, cmd)
}

func showUsage(w io.Writer, cmd *cobra.Command) error {
	fmt.Fprint(w, "Usage:\n")
	if cmd.Runnable() {
		fmt.Fprintf(w, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "  %s COMMAND\n\nCommands:\n", cmd.CommandPath())
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(w, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, topic := range topics(cmd.LocalFlags()) {
		if cmd.HasParent() || topic.title == commonTopic {
			fmt.Fprintf(w, "\n%s:\n%s", topic.title, topic.flags.FlagUsagesWrapped(helpWidth))
		}
	}
	if !cmd.HasParent() {
		fmt.Fprint(w, "\n'kelson serve --help' shows all flags, 'kelson COMMAND --help' those of a command.\n")
	}
	return nil
}

// topic is a heading of the help with its flags.
type topic struct {
	title string
	flags *pflag.FlagSet
}

// topics groups flags by heading, in the order in which they were added.
func topics(flags *pflag.FlagSet) (all []*topic) {
	byTitle := map[string]*topic{}
	flags.SortFlags = false
	flags.VisitAll(func(f *pflag.Flag) {
		title := "Flags"
		if note := f.Annotations[topicNote]; len(note) > 0 {
			title = note[0]
		}
		if f.Hidden {
			return
		}
		if byTitle[title] == nil {
			t := &topic{title, pflag.NewFlagSet(title, pflag.ContinueOnError)}
			t.flags.SortFlags = false
			byTitle[title], all = t, append(all, t)
		}
		byTitle[title].flags.AddFlag(f)
	})
	return all
}

// withDashes accepts underscores in flag names, as kube-apiserver does.
func withDashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}
