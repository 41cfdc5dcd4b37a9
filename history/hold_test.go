package history

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/apikeel/kelson/budget"
	"github.com/apikeel/kelson/request"
)

// A page waits until others have given their memory back, and is refused if they do not.
func TestPagesWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Pages{Memory: budget.New(budget.MinLimit)}
		q := &question{user: &request.User{Name: "jane"}}
		first, err := p.hold(t.Context(), q, false)
		if err != nil {
			t.Fatal(err)
		}
		if p.Memory.Answers.Held() == 0 {
			t.Fatal("a page holds nothing, want its bytes")
		}
		second := make(chan error, 1)
		go func() {
			release, err := p.hold(t.Context(), q, false)
			if err == nil {
				release()
			}
			second <- err
		}()
		synctest.Wait()
		select {
		case err := <-second:
			t.Fatalf("a second page does not wait: %v", err)
		default:
		}
		first()
		if err := <-second; err != nil {
			t.Errorf("after the first page the second gets %v, want no error", err)
		}
		if held := p.Memory.Answers.Held(); held != 0 {
			t.Errorf("in the end %d bytes are held, want 0", held)
		}
		if _, err = p.hold(t.Context(), q, false); err != nil {
			t.Fatal(err)
		}
		_, err = p.hold(t.Context(), q, false)
		if !errors.Is(err, budget.ErrBusy) {
			t.Fatalf("a page for which there is no room: %v, want ErrBusy", err)
		}
		if code := p.apiError(context.Background(), q, err).Code; code != 429 {
			t.Errorf("the page answers %d, want 429", code)
		}
	})
}
