package servers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubeconfig has the fields of a kubeconfig that are used here. Plugins (exec) are not.
type kubeconfig struct {
	CurrentContext string `json:"current-context"`
	Contexts       []struct {
		Name    string `json:"name"`
		Context struct {
			Cluster string `json:"cluster"`
			User    string `json:"user"`
		} `json:"context"`
	} `json:"contexts"`
	Clusters []struct {
		Name    string `json:"name"`
		Cluster struct {
			Server   string `json:"server"`
			Insecure bool   `json:"insecure-skip-tls-verify"`
			Name     string `json:"tls-server-name"`
			CAData   []byte `json:"certificate-authority-data"`
			CA       string `json:"certificate-authority"`
		} `json:"cluster"`
	} `json:"clusters"`
	Users []struct {
		Name string `json:"name"`
		User struct {
			Token     string `json:"token"`
			TokenFile string `json:"tokenFile"`
			CertData  []byte `json:"client-certificate-data"`
			Cert      string `json:"client-certificate"`
			KeyData   []byte `json:"client-key-data"`
			Key       string `json:"client-key"`
		} `json:"user"`
	} `json:"users"`
}

// fromKubeconfig returns the server that the current context of a file names.
func fromKubeconfig(name, file string) (*Server, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var k kubeconfig
	if err := yaml.Unmarshal(text, &k); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	v := &Server{Name: name, TLS: &tls.Config{}}
	// content returns what is in the field, or in the file that a field names.
	content := func(data []byte, path string) []byte {
		if len(data) > 0 || path == "" {
			return data
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		text, readErr := os.ReadFile(path)
		err = errors.Join(err, readErr)
		return text
	}
	for _, c := range k.Contexts {
		if c.Name != k.CurrentContext {
			continue
		}
		for _, cluster := range k.Clusters {
			if cluster.Name == c.Context.Cluster {
				v.URL = strings.TrimSuffix(cluster.Cluster.Server, "/")
				v.TLS.InsecureSkipVerify, v.TLS.ServerName = cluster.Cluster.Insecure, cluster.Cluster.Name
				if ca := content(cluster.Cluster.CAData, cluster.Cluster.CA); len(ca) > 0 {
					v.TLS.RootCAs = x509.NewCertPool()
					v.TLS.RootCAs.AppendCertsFromPEM(ca)
				}
			}
		}
		for _, user := range k.Users {
			if user.Name == c.Context.User {
				v.Token = strings.TrimSpace(string(content([]byte(user.User.Token), user.User.TokenFile)))
				cert, key := content(user.User.CertData, user.User.Cert), content(user.User.KeyData, user.User.Key)
				if len(cert) > 0 {
					pair, pairErr := tls.X509KeyPair(cert, key)
					err = errors.Join(err, pairErr)
					v.TLS.Certificates = []tls.Certificate{pair}
				}
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if v.URL == "" {
		return nil, fmt.Errorf("%s: the current context %q names no server", file, k.CurrentContext)
	}
	return v, nil
}
