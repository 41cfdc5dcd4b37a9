package main

import (
	"encoding/xml"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestPlayShowsCommandsAndOutput: commands and what they print are lines in order, hidden
// ones are run only.
func TestPlayShowsCommandsAndOutput(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not on PATH, which scripts are run with")
	}
	lines, err := play(t.Context(), t.TempDir(), "echo 'it''s one'\n#! word=two\necho $word >&2\n")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range lines {
		text := l.text
		if l.prompt {
			text = "$ " + text
		}
		got = append(got, text)
	}
	if want := "$ echo 'it''s one'|its one|$ echo $word|two"; strings.ReplaceAll(strings.Join(got, "|"), " >&2", "") != want {
		t.Errorf("got %q, want %q", strings.Join(got, "|"), want)
	}
}

// TestDrawIsXML: what is drawn can be parsed, whatever the text.
func TestDrawIsXML(t *testing.T) {
	svg := draw([]line{{0, "kubectl get <x> & y", true}, {time.Second, "a < b", false}})
	var parsed struct {
		Text []string `xml:"text"`
	}
	if err := xml.Unmarshal([]byte(svg), &parsed); err != nil || len(parsed.Text) != 2 || parsed.Text[0] != "$ kubectl get <x> & y" {
		t.Errorf("got %q, %v; want both lines", parsed.Text, err)
	}
}

// TestRecordingIsOfItsScript: the picture in the documents was made from the script beside
// it: it shows the same commands.
func TestRecordingIsOfItsScript(t *testing.T) {
	script, err := os.ReadFile("../../docs/images/terminal.sh")
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile("../../docs/images/terminal.svg")
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for command := range strings.Lines(string(script)) {
		command = strings.TrimRight(command, "\n")
		if command == "" || strings.HasPrefix(command, "#!") {
			continue
		}
		if shown++; !strings.Contains(string(svg), ">$ "+escape(command)+"</text>") {
			t.Errorf("terminal.svg: got no %q, want what terminal.sh has; run 'go run ./internal/recording docs/images/terminal.sh docs/images/terminal.svg'", command)
		}
	}
	if got := strings.Count(string(svg), `class="typed"`); got != shown {
		t.Errorf("terminal.svg: got %d commands, want %d", got, shown)
	}
}
