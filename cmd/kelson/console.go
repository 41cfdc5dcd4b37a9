package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/apikeel/kelson/console"
)

func newConsole(s streams) *cobra.Command {
	c := consoleCommand{streams: s}
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open a console in the browser",
		Long: `Open a console in the browser for a running server: what it does now, its objects,
who may do what, its APIs, and how it was before.

The console listens on loopback and forwards with your kubeconfig, until Ctrl-C. It
prints a link that logs in once. For a Kubernetes API server that is not Kelson it shows
what that can tell.

To listen on another address, give a password and a certificate: whoever logs in has
your rights.`,
		Example: `  kelson console
  kelson console --context staging --open=false
  kelson console --listen 10.0.0.5:8443 --password-file console.pass --tls-cert-file tls.crt --tls-private-key-file tls.key`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	fs := cmd.Flags()
	c.bindServer(fs)
	fs.StringVar(&c.listen, "listen", "127.0.0.1:0", "`address` to listen on; port 0 takes a free one")
	fs.BoolVar(&c.open, "open", true, "open the link in the browser")
	fs.StringVar(&c.passwordFile, "password-file", "", "`file` with a password that logs in, instead of a link")
	fs.StringVar(&c.certFile, "tls-cert-file", "", "`file` with a certificate, to serve by TLS")
	fs.StringVar(&c.keyFile, "tls-private-key-file", "", "`file` with the key of the certificate")
	fs.StringVar(&c.pageDir, "page-dir", "", "`folder` with the files of the page, for who works on them")
	_ = fs.MarkHidden("page-dir")
	return cmd
}

// consoleCommand is 'kelson console'.
type consoleCommand struct {
	ask
	streams
	listen, passwordFile, certFile, keyFile, pageDir string
	open                                             bool
}

func (c *consoleCommand) run(ctx context.Context) error {
	password, err := c.password()
	if err != nil {
		return err
	}
	t, err := c.connect()
	if err != nil {
		return err
	}
	config, err := c.describe(t)
	if err != nil {
		return err
	}
	config.Password, config.TLS = password, c.certFile != ""
	config.Info.Password = password != ""
	config.Actions = consoleActions(t)
	if c.pageDir != "" {
		config.Page = os.DirFS(c.pageDir)
	}
	if err := c.mayListen(password); err != nil {
		return err
	}
	secure, err := c.secure()
	if err != nil {
		return err
	}
	listener, err := listenFor(c.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	config.Hosts = hostsOf(c.listen, listener.Addr().(*net.TCPAddr))
	scheme := "http://"
	if config.TLS {
		scheme = "https://"
		config.Hosts = append(config.Hosts, namesOf(secure.Certificates[0].Leaf, listener.Addr().(*net.TCPAddr))...)
	}
	handler := console.New(config)
	link := scheme + config.Hosts[0] + "/"
	if password == "" {
		link = scheme + config.Hosts[0] + handler.NewLink()
	}
	fmt.Fprintf(cleaner{c.out}, "The console of %s is open until Ctrl-C:\n\n  %s\n\n", config.Info.Server, link)
	if password == "" {
		fmt.Fprintln(c.out, "The link logs in once, within ten minutes.")
	}
	if c.open {
		defer openBrowser(link)()
	}
	return handler.Serve(ctx, listener, secure)
}

// listenFor listens, and checks that a name for this machine is one.
func listenFor(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another program listens on --listen=%s already: give another port, or 0 for a free one", address)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on --listen=%s: %w", address, err)
	}
	if host, _, _ := net.SplitHostPort(address); host == "localhost" && !listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		_ = listener.Close()
		return nil, fmt.Errorf("--listen=%s: localhost is %s here, which is not loopback; give 127.0.0.1", address, listener.Addr())
	}
	return listener, nil
}

// secure is the configuration of TLS, or nil.
func (c *consoleCommand) secure() (*tls.Config, error) {
	if c.certFile == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file and --tls-private-key-file: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}, nil
}

// describe returns the configuration of a console for the server of a kubeconfig.
func (c *consoleCommand) describe(t *target) (console.Config, error) {
	server, _, err := rest.DefaultServerUrlFor(t.config)
	if err != nil {
		return console.Config{}, err
	}
	transport, err := rest.TransportFor(t.config)
	if err != nil {
		return console.Config{}, err
	}
	bare := &url.URL{Scheme: server.Scheme, Host: server.Host, Path: server.Path} // without a name and a password
	info := console.Info{Server: bare.String(), Namespace: t.namespace, Version: bareVersion(), Context: t.contextName, User: t.config.Impersonate.UserName}
	return console.Config{Server: bare, Transport: transport, Info: info}, nil
}

// password reads the file of --password-file.
func (c *consoleCommand) password() (string, error) {
	if c.passwordFile == "" {
		return "", nil
	}
	f, err := os.Open(c.passwordFile)
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	password := strings.TrimSpace(string(text))
	if len(password) < 12 {
		return "", fmt.Errorf("--password-file=%s has a password of %d characters; give one of 12 at least", c.passwordFile, len(password))
	}
	return password, nil
}

// mayListen refuses addresses that others reach, unless there are a password and TLS.
func (c *consoleCommand) mayListen(password string) error {
	host, _, err := net.SplitHostPort(c.listen)
	if err != nil {
		return fmt.Errorf("--listen=%s is not an address with a port, such as 127.0.0.1:8001", c.listen)
	}
	if (c.certFile == "") != (c.keyFile == "") {
		return errors.New("give --tls-cert-file and --tls-private-key-file together")
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() || password != "" && c.certFile != "" {
		return nil
	}
	return fmt.Errorf("--listen=%s can be reached by others: give --password-file, --tls-cert-file and --tls-private-key-file as well", c.listen)
}

// hostsOf returns the names by which a browser may reach the address, the best first.
func hostsOf(listen string, at *net.TCPAddr) []string {
	host, _, _ := net.SplitHostPort(listen)
	port := fmt.Sprint(at.Port)
	hosts := []string{net.JoinHostPort(host, port)}
	switch ip := net.ParseIP(host); {
	case host == "localhost" || ip != nil && ip.IsLoopback():
		hosts = append(hosts, "localhost:"+port)
	case host == "" || ip != nil && ip.IsUnspecified():
		// Every address of this machine, and its name.
		hosts = nil
		if name, err := os.Hostname(); err == nil {
			hosts = append(hosts, strings.ToLower(name)+":"+port)
		}
		addresses, _ := net.InterfaceAddrs()
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok {
				hosts = append(hosts, net.JoinHostPort(n.IP.String(), port))
			}
		}
		hosts = append(hosts, "localhost:"+port)
	}
	return hosts
}

// namesOf returns the names for which a certificate is good, with the port.
func namesOf(certificate *x509.Certificate, at *net.TCPAddr) []string {
	var hosts []string
	for _, name := range certificate.DNSNames {
		hosts = append(hosts, net.JoinHostPort(strings.ToLower(name), fmt.Sprint(at.Port)))
	}
	for _, ip := range certificate.IPAddresses {
		hosts = append(hosts, net.JoinHostPort(ip.String(), fmt.Sprint(at.Port)))
	}
	return hosts
}

// openBrowser shows the link, where there is a browser. Other users of the machine see the
// arguments of programs, so the browser gets a file that only this user can read, which
// leads to the link. The function that it returns removes the file.
func openBrowser(link string) (done func()) {
	program, args := "xdg-open", []string{}
	switch {
	case runtime.GOOS == "darwin":
		program = "open"
	case runtime.GOOS == "windows":
		program, args = "rundll32", []string{"url.dll,FileProtocolHandler"}
	case os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "":
		return func() {}
	}
	file, err := writeRedirect(link)
	if err != nil {
		return func() {} // the link is printed
	}
	cmd := exec.Command(program, append(args, file)...)
	if cmd.Start() == nil {
		go func() { _ = cmd.Wait() }()
	}
	return func() { _ = os.Remove(file) }
}

// writeRedirect writes a page that leads to the link, which others cannot read.
func writeRedirect(link string) (name string, err error) {
	f, err := os.CreateTemp("", "kelson-console-*.html")
	if err != nil {
		return "", err
	}
	text := html.EscapeString(link)
	_, err = fmt.Fprintf(f, "<!doctype html>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"0; url=%s\">\n<a href=\"%s\">The console</a>\n", text, text)
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
