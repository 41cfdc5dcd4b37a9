package stores

import (
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
)

// Etcd holds the flags of the etcd client, with kube-apiserver's names.
type Etcd struct {
	// Servers are the URLs; the caller binds their flag.
	Servers []string

	ca, cert, key string
	prefix        string
	timeout       time.Duration
}

// Bind adds the flags, except for the servers.
func (f *Etcd) Bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "etcd-cafile", "", "`file` with the authority that signed etcd's certificates")
	fs.StringVar(&f.cert, "etcd-certfile", "", "`file` with the certificate to show to etcd")
	fs.StringVar(&f.key, "etcd-keyfile", "", "`file` with the key of that certificate")
	fs.StringVar(&f.prefix, "etcd-prefix", strings.TrimSuffix(storage.Root, "/"), "`path` in etcd below which the objects are")
	fs.DurationVar(&f.timeout, "etcd-dial-timeout", 10*time.Second, "how long to wait for etcd to answer")
}

// Options returns the options that the flags set.
func (f *Etcd) Options() etcd.Options {
	return etcd.Options{
		Endpoints: f.Servers, CAFile: f.ca, CertFile: f.cert, KeyFile: f.key, Prefix: path.Join("/", f.prefix), DialTimeout: f.timeout,
	}
}
