package main

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/apikeel/kelson/connect"
	"github.com/apikeel/kelson/controlplane"
	"github.com/apikeel/kelson/storage"
	"github.com/apikeel/kelson/storage/etcd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
)

// storageFlags say where a server has its data.
type storageFlags struct {
	dataDir string
	storage string
	servers []string
	etcd    etcdFlags
}

func (f *storageFlags) bind(fs *pflag.FlagSet) {
	bindDataDir(fs, &f.dataDir)
	fs.StringVar(&f.storage, "storage", "", "`where` the data is: engine (in the data folder), memory or etcd (default engine, or etcd with --etcd-servers)")
	fs.StringSliceVar(&f.servers, "etcd-servers", nil, "`URLs` of etcd, separated by commas: http://host:2379")
	f.etcd.bind(fs)
}

func bindDataDir(fs *pflag.FlagSet, dir *string) {
	fs.StringVar(dir, "data-dir", controlplane.DefaultDataDir, "data `folder`")
}

func (f *storageFlags) config(cmd *cobra.Command) (controlplane.Config, error) {
	options, err := f.etcd.options(cmd, f.servers)
	if err != nil {
		return controlplane.Config{}, err
	}
	return controlplane.Config{DataDir: f.dataDir, Storage: f.storage, Etcd: options}, nil
}

// serveFlags say where a server has its data and where it listens.
type serveFlags struct {
	storageFlags
	address    string
	port       int
	kubeconfig string
	kubelets   kubeletFlags
	services   serviceFlags
}

func (f *serveFlags) bind(fs *pflag.FlagSet) {
	f.storageFlags.bind(fs)
	fs.StringVar(&f.address, "bind-address", controlplane.DefaultBindAddress, "IP `address` to listen on")
	fs.IntVar(&f.port, "secure-port", controlplane.DefaultSecurePort, "`port` to listen on; 0 takes a free one")
	fs.StringVar(&f.kubeconfig, "write-kubeconfig", "", "`file` for the administrator's kubeconfig, written when the server listens (default kubeconfig in the data folder)")
	f.kubelets.bind(fs)
	f.services.bind(fs)
}

func (f *serveFlags) config(cmd *cobra.Command) (controlplane.Config, error) {
	config, err := f.storageFlags.config(cmd)
	config.BindAddress, config.SecurePort, config.Kubeconfig = f.address, &f.port, f.kubeconfig
	f.kubelets.apply(&config)
	if err == nil {
		err = f.services.apply(&config)
	}
	return config, err
}

// kubeletFlags say how to talk to kubelets, with the names that kube-apiserver
// has for them.
type kubeletFlags struct {
	ca, cert, key string
	addresses     []string
}

func (f *kubeletFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "kubelet-certificate-authority", "", "`file` with the authority that signed the certificates of kubelets; without it they are not verified")
	fs.StringVar(&f.cert, "kubelet-client-certificate", "", "`file` with the certificate to show to kubelets")
	fs.StringVar(&f.key, "kubelet-client-key", "", "`file` with the key of that certificate")
	fs.StringSliceVar(&f.addresses, "kubelet-preferred-address-types", []string{"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"},
		"`types` of the addresses of nodes at which kubelets are reached, the preferred one first")
}

func (f *kubeletFlags) apply(config *controlplane.Config) {
	config.Kubelets = connect.Config{KubeletCA: f.ca, KubeletCertificate: f.cert, KubeletKey: f.key}
	for _, t := range f.addresses {
		config.KubeletAddresses = append(config.KubeletAddresses, corev1.NodeAddressType(t))
	}
}

// etcdFlags say how to talk to etcd, with the names that kube-apiserver has
// for them.
type etcdFlags struct {
	ca, cert, key string
	prefix        string
	timeout       time.Duration
}

func (f *etcdFlags) bind(fs *pflag.FlagSet) {
	fs.StringVar(&f.ca, "etcd-cafile", "", "`file` with the authority that signed etcd's certificates")
	fs.StringVar(&f.cert, "etcd-certfile", "", "`file` with the certificate to show to etcd")
	fs.StringVar(&f.key, "etcd-keyfile", "", "`file` with the key of that certificate")
	fs.StringVar(&f.prefix, "etcd-prefix", strings.TrimSuffix(storage.Root, "/"), "`path` in etcd below which the objects are; it must end with /registry")
	fs.DurationVar(&f.timeout, "etcd-dial-timeout", 10*time.Second, "how long to wait for etcd to answer")
}

func (f *etcdFlags) options(cmd *cobra.Command, servers []string) (etcd.Options, error) {
	prefix, err := etcdPrefix(f.prefix)
	if err != nil {
		return etcd.Options{}, usage(cmd, "%w", err)
	}
	return etcd.Options{
		Endpoints:   servers,
		CAFile:      f.ca,
		CertFile:    f.cert,
		KeyFile:     f.key,
		Prefix:      prefix,
		DialTimeout: f.timeout,
	}, nil
}

// etcdPrefix returns what comes before storage.Root in etcd for a prefix as
// kube-apiserver takes it, which is storage.Root unless changed.
func etcdPrefix(flag string) (string, error) {
	full := path.Join("/", flag) + "/"
	prefix, ok := strings.CutSuffix(full, storage.Root)
	if !ok {
		return "", fmt.Errorf("--etcd-prefix %q does not end with %s, where Kelson keeps objects", flag, strings.TrimSuffix(storage.Root, "/"))
	}
	return prefix, nil
}
