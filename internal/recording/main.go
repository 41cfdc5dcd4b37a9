// Command recording runs a script in a shell and draws what a terminal would have
// shown as an SVG, line by line in the time that it took. Start at main.
//
//	go run ./internal/recording docs/images/terminal.sh docs/images/terminal.svg
//
// Each line of the script is a command that is shown and run; a line that begins with
// "#!" is run and not shown, for what a person would wait for. The kelson that runs is
// built from this module; kubectl is the one on PATH.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// limit is how long a script may take.
const limit = 2 * time.Minute

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: recording SCRIPT SVG")
		os.Exit(2)
	}
	if err := record(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(scriptFile, svgFile string) error {
	script, err := os.ReadFile(scriptFile)
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "recording-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	build := exec.Command("go", "build", "-o", temp+"/bin/kelson", "github.com/apikeel/kelson/cmd/kelson")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building kelson: %w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	lines, err := play(ctx, temp, string(script))
	if err != nil {
		return err
	}
	return os.WriteFile(svgFile, []byte(draw(lines)), 0o644)
}

// line is a line of the terminal.
type line struct {
	at     time.Duration // when it was complete, from the start
	text   string
	prompt bool // the person typed it
}

// mark begins a line of output that says that the next command starts.
const mark = "\x1e"

// play runs the script in one shell, with a folder of its own, and returns what there
// is to see.
func play(ctx context.Context, temp, script string) ([]line, error) {
	var program strings.Builder
	program.WriteString("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n")
	for command := range strings.Lines(script) {
		command = strings.TrimRight(command, "\n")
		if hidden, ok := strings.CutPrefix(command, "#!"); ok {
			fmt.Fprintf(&program, "%s\n", hidden)
			continue
		}
		if command != "" {
			fmt.Fprintf(&program, "printf '%s%%s\\n' %s\n%s\n", mark, quote(command), command)
		}
	}
	work := filepath.Join(temp, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", program.String())
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "PATH="+temp+"/bin:"+os.Getenv("PATH"), "KUBECONFIG=", "HOME="+work)
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	began := time.Now()
	var lines []line
	done := make(chan struct{})
	go func() {
		defer close(done)
		scanner := bufio.NewScanner(read)
		for scanner.Scan() {
			text, prompt := strings.CutPrefix(scanner.Text(), mark)
			lines = append(lines, line{time.Since(began), text, prompt})
		}
	}()
	err := cmd.Run()
	_ = write.Close()
	<-done
	return lines, err
}

// quote returns text as one word of a shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// Measures of the drawing in pixels, and of its time.
const (
	charWidth, lineHeight, margin = 8, 19, 16
	// typing is how long a command is shown to be typed: a person has to follow.
	typing = 900 * time.Millisecond
)

// draw returns the lines as an SVG. Viewers without animations show all of them.
func draw(lines []line) string {
	columns := 0
	for _, l := range lines {
		columns = max(columns, len([]rune(l.text))+2)
	}
	width, height := columns*charWidth+2*margin, len(lines)*lineHeight+2*margin+12
	var svg strings.Builder
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">
<style>
text { fill: #d6dbe4; white-space: pre; }
.typed { fill: #8ae234; }
@media (prefers-reduced-motion: no-preference) { text { animation: show 1ms linear both; } }
@keyframes show { from { opacity: 0; } to { opacity: 1; } }
</style>
<rect width="100%%" height="100%%" rx="8" fill="#1b1f27"/>
<circle cx="20" cy="14" r="5" fill="#ff5f57"/><circle cx="36" cy="14" r="5" fill="#febc2e"/><circle cx="52" cy="14" r="5" fill="#28c840"/>
`, width, height, width, height)
	var shift time.Duration
	for i, l := range lines {
		class, text := "", l.text
		if l.prompt {
			class, text = ` class="typed"`, "$ "+text
			shift += typing
		}
		fmt.Fprintf(&svg, `<text x="%d" y="%d"%s style="animation-delay: %.2fs">%s</text>`+"\n",
			margin, margin+20+i*lineHeight, class, (l.at + shift).Seconds(), escape(text))
	}
	svg.WriteString("</svg>\n")
	return svg.String()
}

// escape makes text that of an XML element.
func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
