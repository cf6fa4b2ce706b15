// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package playground tests the page that make playground writes, in Chromium.
package playground

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	site        = "../../bin/playground"
	screenshots = "../../bin/site-screenshots"
)

type action = chromedp.Action[chromedp.Void]

// page is a tab of Chromium that shows the playground.
type page struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // The methods of a test share it.
	url string
	// Errors on the console, and requests to other hosts.
	problems chan string
}

// open starts a server with the files of the page, and opens it in Chromium. The handler can be nil.
func open(t *testing.T, handler http.Handler) *page {
	t.Helper()
	require.FileExists(t, filepath.Join(site, "playground.wasm.gz"), "run make playground first")
	if handler == nil {
		handler = http.FileServer(http.Dir(site))
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	ctx, cancel := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true),
	)...))
	t.Cleanup(cancel)
	p := &page{t: t, ctx: ctx, url: server.URL + "/", problems: make(chan string, 1000)}
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch event := event.(type) {
		case *runtime.EventExceptionThrown:
			p.problems <- "exception: " + event.ExceptionDetails.Text
		case *runtime.EventConsoleAPICalled:
			p.problems <- fmt.Sprintf("console: %s %s", event.Type, event.Args[0].Value)
		case *log.EventEntryAdded:
			p.problems <- "log: " + event.Entry.Text + " " + event.Entry.URL
		case *network.EventRequestWillBeSent:
			if !strings.HasPrefix(event.Request.URL, p.url) {
				p.problems <- "request to another host: " + event.Request.URL
			}
		}
	}))
	t.Cleanup(func() {
		for len(p.problems) > 0 {
			t.Error(<-p.problems)
		}
	})
	p.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(p.url))
	return p
}

func (p *page) do(actions ...action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	require.NoError(p.t, chromedp.Do(ctx, actions...))
}

// get returns the value of an expression.
func get[T any](p *page, expression string) T {
	p.t.Helper()
	value, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression))
	require.NoError(p.t, err, expression)
	return value
}

// wait waits until the expression is true.
func (p *page) wait(expression string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return get[bool](p, expression) }, 3*time.Minute, 50*time.Millisecond, "%s\n%s", expression, p)
}

// passed waits until all cases have passed.
func (p *page) passed() {
	p.t.Helper()
	p.wait(`document.querySelector("#status").dataset.state !== "busy"`)
	require.Equal(p.t, "good", get[string](p, `document.querySelector("#status").dataset.state`), p)
}

// String returns the text of the result.
func (p *page) String() string { return get[string](p, `document.querySelector(".results").innerText`) }

// edit sets the text of an editor, as input does.
func (p *page) edit(id, text string) {
	p.t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(p.t, err)
	get[bool](p, fmt.Sprintf(`(area => { area.value = %s; return area.dispatchEvent(new Event("input")); })(document.getElementById("%s"))`, quoted, id))
}

func (p *page) text(id string) string {
	return get[string](p, fmt.Sprintf(`document.getElementById("%s").value`, id))
}

// choose chooses an example and waits until its cases have passed.
func (p *page) choose(name string) {
	p.t.Helper()
	get[bool](p, fmt.Sprintf(`(select => { select.value = "%s"; return select.dispatchEvent(new Event("change")); })(document.getElementById("example"))`, name))
	p.passed()
}

// show opens the page with the fragment.
func (p *page) show(fragment string) {
	p.t.Helper()
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(p.url+fragment))
}

// screenshot writes a screenshot, and checks that the page does not scroll sideways.
func (p *page) screenshot(name string, actions ...action) {
	p.t.Helper()
	p.do(actions...)
	image, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	require.NoError(p.t, os.MkdirAll(screenshots, 0o755))
	require.NoError(p.t, os.WriteFile(filepath.Join(screenshots, "playground-"+name+".png"), image, 0o600))
	assert.False(p.t, get[bool](p, `document.documentElement.scrollWidth > document.documentElement.clientWidth`), "the page scrolls sideways")
}

// colors sets the color scheme of the system.
func colors(scheme string) action {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		return err
	})
}

func TestPage(t *testing.T) {
	p := open(t, nil)
	p.passed()

	names := get[[]string](p, `Array.from(document.querySelectorAll("#example option:not([hidden])"), o => o.value)`)
	require.Greater(t, len(names), 10)
	for _, name := range names {
		p.choose(name)
		assert.Contains(t, p.text("policy"), "kind: BindPolicy\n", name)
		assert.NotZero(t, get[int](p, `document.querySelectorAll("#cases > li").length`), name)
	}

	p.choose("csi-drivers")
	p.screenshot("desktop")
	p.screenshot("dark", colors("dark"))
	p.choose("rack-awareness")
	assert.Contains(t, p.String(), "rack-awareness.policy.prebind.dev/rack")
	p.screenshot("annotations-dark")
	p.screenshot("annotations", colors("light"))

	policy, test := p.text("policy"), p.text("test")
	p.edit("policy", strings.Replace(policy, "variables.rack != ''", "variables.rock != ''", 1))
	p.wait(`document.querySelector("#status").textContent === "1 error"`)
	assert.Contains(t, p.String(), "undefined field 'rock'")
	assert.Equal(t, 1, get[int](p, `document.querySelectorAll(".gutter .marked").length`))
	p.do(chromedp.Click(chromedp.CSS("#messages button")))
	assert.Contains(t, get[string](p, `(a => a.value.slice(a.selectionStart, a.selectionEnd))(document.activeElement)`), "variables.rock", "the link selects the line")
	p.screenshot("error")

	p.edit("policy", policy)
	p.wait(`document.querySelector("#status").dataset.state === "good"`)
	get[any](p, `(area => { area.focus(); const end = area.value.indexOf("name: rack-awareness"); area.setSelectionRange(end, end); })(document.getElementById("policy"))`)
	p.do(chromedp.KeyEvent("\r"))
	assert.Equal(t, strings.Replace(policy, "  name: rack-awareness", "  \n  name: rack-awareness", 1), p.text("policy"), "a new line keeps the indentation")
	p.edit("test", strings.Replace(test, "verdict: allowed", "verdict: rejected", 1))
	p.wait(`document.querySelector("#status").textContent.endsWith("1 of 5 cases failed")`)
	assert.Contains(t, p.String(), "expected: rejected")
	p.screenshot("failure")

	phone := chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile)
	p.screenshot("phone", phone)
	p.screenshot("phone-results", chromedp.ScrollIntoView(chromedp.CSS("#cases")))
	p.screenshot("phone-dark", colors("dark"))
}

func TestLink(t *testing.T) {
	p := open(t, nil)
	p.passed()
	policy := p.text("policy")
	p.edit("policy", policy+"# ü\n")
	p.edit("test", strings.Replace(p.text("test"), "- name: ", "- name: <img src=x> ", 1))
	p.do(chromedp.Click(chromedp.ID("share")))
	p.wait(`location.hash.startsWith("#code=")`)
	link := get[string](p, `location.hash`)
	assert.Less(t, len(link), 4<<10)

	p.show(link)
	p.passed()
	assert.Equal(t, policy+"# ü\n", p.text("policy"))
	assert.Contains(t, p.String(), "<img src=x>", "texts of a link are not HTML")
	assert.Equal(t, 1, get[int](p, `document.images.length`))

	for _, bad := range []string{"#code=AAAA", "#code=%22", "#code=" + strings.Repeat("A", 70_000)} {
		p.show(bad)
		p.passed()
		assert.Contains(t, p.String(), "The link is not valid", bad)
		assert.Equal(t, policy, p.text("policy"))
	}
	p.show("#example=node-removal")
	p.passed()
	assert.Contains(t, p.text("policy"), "name: node-removal")
}

// TestLimits has policies that cost too much, that the program cannot read, and for which it does not return. The page starts it again.
func TestLimits(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(site)))
	mux.HandleFunc("/worker.js", func(w http.ResponseWriter, _ *http.Request) {
		content, err := os.ReadFile(filepath.Join(site, "worker.js"))
		assert.NoError(t, err)
		w.Header().Set("Content-Type", "text/javascript")
		fmt.Fprint(w, strings.Replace(string(content), "postMessage({report", "while (policy.includes('HANG')); postMessage({report", 1))
	})
	mux.HandleFunc("/playground.wasm.gz", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip") // As some servers do for the suffix .gz. The browser decompresses it.
		http.ServeFile(w, r, filepath.Join(site, "playground.wasm.gz"))
	})
	p := open(t, mux)
	p.passed()
	policy := p.text("policy")
	p.edit("policy", strings.Replace(policy, "variables.rack != ''", "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0))", 1))
	p.wait(`document.querySelector("#cases").textContent.includes("cost limit exceeded")`)
	for _, tc := range []struct{ policy, status string }{
		{strings.Repeat("{a: ", 20_000), "The check failed: "},
		{policy + "# HANG\n", "no result after 10 seconds"},
	} {
		p.edit("policy", tc.policy)
		p.wait(fmt.Sprintf(`document.querySelector("#status").textContent.includes("%s")`, tc.status))
		p.edit("policy", policy)
		p.wait(`document.querySelector("#status").dataset.state === "good"`)
	}
}
