package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"

	library "github.com/apikeel/kelson"
	"github.com/apikeel/kelson/pki"
	"github.com/apikeel/kelson/trace"
)

// These checks read files, as kube-apiserver does after it has validated the flags.

// checkFiles reads the serving certificates.
func (f *servingFlags) checkFiles(s *setup) {
	if f.Certificate.CertFile != "" || f.Certificate.KeyFile != "" {
		s.refuse(lateServing, readPair(f.Certificate))
	}
	s.refuse(lateServing,
		(&library.Serving{CipherSuites: f.CipherSuites, MinVersion: "VersionTLS13"}).Validate(),
		(&library.Serving{MinVersion: f.MinVersion}).Validate(),
		(&library.Serving{Curves: f.Curves}).Validate(),
	)
	for _, pair := range f.SNI {
		if err := readPair(pair); err != nil {
			s.refuse(lateServing, fmt.Errorf("failed to load SNI cert and key: %w", err))
		}
	}
}

// readPair reads a certificate and its key.
func readPair(pair pki.Pair) error {
	if pair.CertFile == "" || pair.KeyFile == "" {
		return errors.New("missing filename for serving cert")
	}
	cert, err := os.ReadFile(pair.CertFile)
	if err != nil {
		return err
	}
	key, err := os.ReadFile(pair.KeyFile)
	if err == nil {
		_, err = tls.X509KeyPair(cert, key)
	}
	return err
}

// checkFile reads the tracing configuration.
func (f *lifeFlags) checkFile(s *setup) {
	if f.tracing != "" {
		_, err := trace.ReadConfig(f.tracing)
		s.refuse(lateTracing, err)
	}
}

// checkFiles reads the client certificate and CA for etcd.
func (f *storageFlags) checkFiles(s *setup) {
	o := f.etcd.options(nil)
	var err error
	switch {
	case (o.CertFile == "") != (o.KeyFile == ""):
		err = fmt.Errorf("KeyFile and CertFile must both be present[key: %s, cert: %s]", o.KeyFile, o.CertFile)
	case o.CertFile != "":
		err = readPair(pki.Pair{CertFile: o.CertFile, KeyFile: o.KeyFile})
	}
	if err == nil && o.CAFile != "" {
		_, err = os.ReadFile(o.CAFile)
	}
	if err != nil {
		s.refuse(lateEtcd, fmt.Errorf("error creating storage factory: %w", err))
	}
}

// checkFiles reads the client certificate and CA for kubelets.
func (f *kubeletFlags) checkFiles(s *setup) {
	for _, file := range []string{f.ca, f.cert, f.key} {
		if file == "" {
			continue
		}
		if _, err := os.ReadFile(file); err != nil {
			s.refuse(lateKubelets, fmt.Errorf("problem initializing API group %q: %w", "", err))
		}
	}
}

// checkFiles reads the client certificate for aggregated API servers, if both files are
// given.
func (f *aggregationFlags) checkFiles(s *setup) {
	if f.cert == "" || f.key == "" {
		f.cert, f.key = "", ""
		return
	}
	s.refuse(lateAggregation, readPair(pki.Pair{CertFile: f.cert, KeyFile: f.key}))
}
