package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// opposite is a flag with the negated value of a setting.
type opposite struct{ of *bool }

func bindOpposite(fs *pflag.FlagSet, of *bool, name, usage string) {
	fs.VarPF(opposite{of}, name, "", usage).NoOptDefVal = "true"
}

// Set implements pflag.Value.
func (o opposite) Set(text string) error {
	value, err := strconv.ParseBool(text)
	*o.of = !value
	return err
}

// String implements pflag.Value.
func (o opposite) String() string { return strconv.FormatBool(o.of == nil || !*o.of) }

// Type implements pflag.Value.
func (opposite) Type() string { return "bool" }

// settings is a flag of key=value pairs separated by commas, which can be given several
// times.
type settings struct {
	to *map[string]string
	// bare allows keys without a value; whole allows commas in values.
	bare, whole bool
}

// Set implements pflag.Value.
func (s settings) Set(text string) error {
	if *s.to == nil {
		*s.to = map[string]string{}
	}
	pairs := strings.Split(text, ",")
	if s.whole {
		pairs = []string{text}
	}
	for _, pair := range pairs {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok && !s.bare {
			return errors.New("malformed pair, expect string=string")
		}
		(*s.to)[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return nil
}

// String implements pflag.Value.
func (s settings) String() string {
	var all []string
	if s.to != nil {
		for _, key := range slices.Sorted(maps.Keys(*s.to)) {
			all = append(all, fmt.Sprintf("%s=%s", key, (*s.to)[key]))
		}
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (settings) Type() string { return "mapStringString" }
