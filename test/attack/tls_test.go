//go:build linux

package attack

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// sealer makes TLS records that crypto/tls does not: it takes over the client's side of
// a connection after the handshake.
type sealer struct {
	net.Conn
	version uint16
	secret  []byte // of TLS 1.3
	iv      []byte
	aead    cipher.AEAD
	seq     uint64
}

// firstRead remembers the beginning of what is read, in which the server's random is.
type firstRead struct {
	net.Conn
	first []byte
}

func (f *firstRead) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if len(f.first) < 64 {
		f.first = append(f.first, p[:n]...)
	}
	return n, err
}

// seal shakes hands with a version of TLS and takes over.
func (a *assault) seal(version uint16) *sealer {
	a.Helper()
	var keys bytes.Buffer
	raw := &firstRead{Conn: a.tcp()}
	config := &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: version, MaxVersion: version, KeyLogWriter: &keys,
		CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}
	conn := tls.Client(raw, config)
	if err := conn.Handshake(); err != nil {
		a.Fatalf("handshake: %v", err)
	}
	s := &sealer{Conn: raw, version: version}
	for line := range strings.Lines(keys.String()) {
		fields := strings.Fields(line)
		secret, _ := hex.DecodeString(fields[2])
		switch {
		case version == tls.VersionTLS13 && fields[0] == "CLIENT_TRAFFIC_SECRET_0":
			if suite := conn.ConnectionState().CipherSuite; suite != tls.TLS_AES_128_GCM_SHA256 {
				a.Skipf("the server prefers %s on this machine", tls.CipherSuiteName(suite))
			}
			s.use(secret)
		case version == tls.VersionTLS12 && fields[0] == "CLIENT_RANDOM":
			random, _ := hex.DecodeString(fields[1])
			const at = 5 + 4 + 2 // a record, a message and a version
			block := keyBlock(secret, append(bytes.Clone(raw.first[at:at+32]), random...), 40)
			s.iv, s.seq = block[32:36], 1 // after the client's Finished
			s.aead = gcm(block[:16])
		}
	}
	if s.aead == nil {
		a.Fatalf("no keys in the log %q", keys.String())
	}
	return s
}

func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// keyBlock derives keys of TLS 1.2.
func keyBlock(master, seed []byte, n int) (out []byte) {
	seed = append([]byte("key expansion"), seed...)
	sum := func(data ...[]byte) []byte {
		h := hmac.New(sha256.New, master)
		for _, d := range data {
			h.Write(d)
		}
		return h.Sum(nil)
	}
	for a := sum(seed); len(out) < n; a = sum(a) {
		out = append(out, sum(a, seed)...)
	}
	return out[:n]
}

// expand derives something of TLS 1.3.
func expand(secret []byte, label string, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len("tls13 "+label)))
	info = append(append(info, "tls13 "+label...), 0)
	out, err := hkdf.Expand(sha256.New, secret, string(info), n)
	if err != nil {
		panic(err)
	}
	return out
}

// use makes a secret of TLS 1.3 the one of the records that follow.
func (s *sealer) use(secret []byte) {
	s.secret, s.iv, s.seq = secret, expand(secret, "iv", 12), 0
	s.aead = gcm(expand(secret, "key", 16))
}

// record returns a record with a type.
func (s *sealer) record(kind byte, content []byte) []byte {
	defer func() { s.seq++ }()
	if s.version == tls.VersionTLS12 {
		var explicit [8]byte
		binary.BigEndian.PutUint64(explicit[:], s.seq)
		added := append(explicit[:len(explicit):len(explicit)], kind, 3, 3, byte(len(content)>>8), byte(len(content)))
		sealed := s.aead.Seal(explicit[:len(explicit):len(explicit)], append(bytes.Clone(s.iv), explicit[:]...), content, added)
		return append([]byte{kind, 3, 3, byte(len(sealed) >> 8), byte(len(sealed))}, sealed...)
	}
	nonce := bytes.Clone(s.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(s.seq >> (56 - 8*i))
	}
	inner := append(bytes.Clone(content), kind)
	n := len(inner) + s.aead.Overhead()
	head := []byte{23, 3, 3, byte(n >> 8), byte(n)}
	return append(head, s.aead.Seal(nil, nonce, inner, head)...)
}

// Types of records and messages.
const (
	recordHandshake   = 22
	recordData        = 23
	messageKeyUpdate  = 24
	messageHello      = 1
	updateIsRequested = 1
)

// ended reports whether the server hangs up.
func (s *sealer) ended() bool {
	_ = s.SetReadDeadline(time.Now().Add(soon))
	_, err := io.Copy(io.Discard, s.Conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestRenegotiation: a client of TLS 1.2 that wants another handshake is cut off.
func TestRenegotiation(t *testing.T) {
	attack(t, price{cpu: 1e6, held: 1 << 10, log: 16}, func(a *assault) {
		s := a.seal(tls.VersionTLS12)
		if _, err := s.Write(s.record(recordData, []byte(http2.ClientPreface))); err != nil {
			t.Fatal(err)
		}
		hello := append([]byte{messageHello, 0, 0, 40, 3, 3}, make([]byte, 38)...)
		for range 100 {
			if _, err := s.Write(s.record(recordHandshake, hello)); err != nil {
				break
			}
		}
		if !s.ended() {
			a.Errorf("the server goes on after a client hello")
		}
	})
}

// TestKeyUpdates: a client of TLS 1.3 that changes keys again and again, and wants the
// server to, is cut off; one that sends data meanwhile pays for it.
func TestKeyUpdates(t *testing.T) {
	for name, data := range map[string]bool{"alone": false, "with data": true} {
		t.Run(name, func(t *testing.T) {
			attack(t, price{cpu: 3 * 1e6, held: 1 << 10, log: 16}, func(a *assault) {
				s := a.seal(tls.VersionTLS13)
				go func() { _, _ = io.Copy(io.Discard, s.Conn) }()
				text := []byte(http2.ClientPreface)
				text = append(text, frame(http2.FrameSettings, 0, 0, nil)...)
				ping := frame(http2.FramePing, http2.FlagPingAck, 0, make([]byte, 8))
				for len(text) < 5000 {
					text = append(text, ping...)
				}
				_, err := s.Write(s.record(recordData, text[:33]))
				text = text[33:]
				updates := 0
				for ; updates < 3000 && err == nil; updates++ {
					records := s.record(recordHandshake, []byte{messageKeyUpdate, 0, 0, 1, updateIsRequested})
					s.use(expand(s.secret, "traffic upd", 32))
					if data {
						records = append(records, s.record(recordData, text[:1])...)
						text = text[1:]
					}
					_, err = s.Write(records)
				}
				if !data && err == nil {
					// What was sent may be on its way.
					_ = s.SetReadDeadline(time.Now().Add(soon))
					within(t, soon, "the server has cut off a client that only changes keys", func() bool {
						_, err := s.Write([]byte{0})
						return err != nil
					})
				}
				t.Logf("%d updates of keys, and then %v", updates, err)
			})
		})
	}
}
