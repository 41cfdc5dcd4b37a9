package serverflags

import (
	"regexp"

	"github.com/spf13/pflag"
)

// secret is the value of a flag that may have a password in it. What the flag is shown as, by
// pages, logs and help, has none.
type secret struct {
	to   *string
	show func(string) string
}

// SecretVar binds a flag that may have a password in its value. show returns the value without.
// Files are better for passwords: everybody on a machine can read command lines.
func SecretVar(fs *pflag.FlagSet, to *string, name, usage string, show func(string) string) {
	fs.Var(secret{to, show}, name, usage)
}

// Set implements pflag.Value.
func (s secret) Set(text string) error {
	*s.to = text
	return nil
}

// String implements pflag.Value.
func (s secret) String() string {
	if s.to == nil || *s.to == "" {
		return ""
	}
	return s.show(*s.to)
}

// Type implements pflag.Value.
func (secret) Type() string { return "string" }

// Shown returns the values of all flags as pages and logs may show them: without the passwords
// of secret flags, and of URLs.
func Shown(fs *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) { all[f.Name] = WithoutPasswords(f.Value.String()) })
	return all
}

var userInfo = regexp.MustCompile(`(://[^/?#@:\s]*:)[^/?#\s]*@`)

// WithoutPasswords replaces the passwords of the URLs in a text.
func WithoutPasswords(text string) string { return userInfo.ReplaceAllString(text, "${1}xxxxx@") }
