// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const screenshots = root + "/bin/site-screenshots"

type action = chromedp.Action[chromedp.Void]

// browser is a tab of Chromium that shows the site.
type browser struct {
	url string
	// Errors on the console, and requests to other hosts.
	problems chan string
}

// start starts a server of the site, and Chromium. The actions of chromedp need the context.
func start(t *testing.T) (context.Context, *browser) {
	t.Helper()
	require.FileExists(t, site+"/index.html", "run make site first")
	server := httptest.NewServer(http.FileServer(http.Dir(site)))
	t.Cleanup(server.Close)
	ctx, cancel := chromedp.NewContext(t.Context(), chromedp.WithAllocatorOptions(append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox,
		chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true),
	)...))
	t.Cleanup(cancel)
	b := &browser{url: server.URL, problems: make(chan string, 1000)}
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		switch event := event.(type) {
		case *runtime.EventExceptionThrown:
			b.problems <- "exception: " + event.ExceptionDetails.Text
		case *runtime.EventConsoleAPICalled:
			if event.Type == runtime.ConsoleAPICalledTypeError || event.Type == runtime.ConsoleAPICalledTypeWarning {
				b.problems <- "console: " + string(event.Args[0].Value)
			}
		case *log.EventEntryAdded:
			if event.Entry.Level == log.EntryLevelError {
				b.problems <- "log: " + event.Entry.Text + " " + event.Entry.URL
			}
		case *network.EventRequestWillBeSent:
			if url := event.Request.URL; !strings.HasPrefix(url, server.URL+"/") && !strings.HasPrefix(url, "data:") {
				b.problems <- "request to another host: " + url
			}
		}
	}))
	return ctx, b
}

// open opens a page, waits until its script runs, and does the actions. It checks that the page has no problem, and does not scroll
// sideways.
func (b *browser) open(ctx context.Context, t *testing.T, path string, actions ...action) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// The next page differs not only in its fragment.
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(b.url+path)))
	require.Eventually(t, func() bool {
		ready, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`"__vue_app__" in document.querySelector("#app") && document.fonts.status == "loaded"`))
		return err == nil && ready
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, chromedp.Do(ctx, actions...))
	wide, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > document.documentElement.clientWidth`))
	require.NoError(t, err)
	assert.False(t, wide, "the page scrolls sideways")
	for len(b.problems) > 0 {
		t.Error(<-b.problems)
	}
}

var (
	desktop = chromedp.EmulateViewport(1280, 900)
	phone   = chromedp.EmulateViewport(390, 844, chromedp.EmulateScale(2), chromedp.EmulateMobile)
)

// click works also on a phone, where a mouse does not.
func click(selector string) action {
	return chromedp.Evaluate[chromedp.Void](`document.querySelector("` + selector + `").click()`)
}

// TestPages shows one page of each type, and writes its screenshot.
func TestPages(t *testing.T) {
	ctx, b := start(t)
	require.NoError(t, os.MkdirAll(screenshots, 0o755))
	search := chromedp.Steps(
		click("#local-search button"),
		chromedp.SendKeys(chromedp.ID("localsearch-input"), "ReadWriteOncePod"),
		chromedp.WaitVisible(chromedp.CSS(`.results a[href*="/docs/volumebinding.html"]`)),
	)
	menu := chromedp.Steps(
		click(".VPLocalNav .menu"),
		chromedp.WaitVisible(chromedp.CSS(".VPSidebar.open")),
	)
	dark := click(".VPSwitchAppearance")
	for _, page := range []struct {
		name, path string
		viewport   action
		actions    []action
	}{
		{"front", "/", desktop, []action{chromedp.WaitVisible(chromedp.CSS(`.tagline a[href$="/docs/conformance/"]`))}},
		{"front-dark", "/", desktop, []action{dark}},
		{"front-phone", "/", phone, nil},
		{"diagram-phone", "/docs/contributing/design.html", phone, []action{chromedp.ScrollIntoView(chromedp.CSS(`img[src*="packages"]`))}},
		{"table-phone", "/docs/comparison.html", phone, []action{chromedp.ScrollIntoView(chromedp.CSS("table"))}},
		{"index", "/docs/", desktop, nil},
		{"guide", "/docs/install.html", desktop, nil},
		{"guide-dark", "/docs/install.html#roll-out", desktop, []action{dark}},
		{"guide-phone", "/docs/install.html", phone, nil},
		{"menu-phone", "/docs/install.html", phone, []action{menu}},
		{"reference", "/docs/policies-reference.html", desktop, nil},
		{"reference-phone", "/docs/policies-reference.html#bindtask", phone, nil},
		{"flags-phone", "/docs/flags.html", phone, nil},
		{"runbook", "/docs/runbooks/PrebindWaitsLong.html", desktop, nil},
		{"performance", "/docs/performance/", desktop, []action{chromedp.WaitVisible(chromedp.CSS(".chart"))}},
		{"performance-phone", "/docs/performance/", phone, nil},
		{"manifest", "/docs/manifests/kafka.yaml.html", desktop, nil},
		{"api", "/docs/api.txt.html", desktop, nil},
		{"versions", "/docs/upgrade.html", desktop, []action{click(".VPNavBarMenuGroup button")}},
		{"search", "/docs/", desktop, []action{search}},
		{"search-phone", "/docs/", phone, []action{search}},
	} {
		t.Run(page.name, func(t *testing.T) {
			require.NoError(t, chromedp.Do(ctx, page.viewport))
			b.open(ctx, t, page.path, append(page.actions, chromedp.Sleep(time.Second))...)
			image, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
			require.NoError(t, err)
			// Dark mode is stored.
			require.NoError(t, chromedp.Do(ctx, chromedp.Evaluate[chromedp.Void](`localStorage.clear()`)))
			require.NoError(t, os.WriteFile(filepath.Join(screenshots, page.name+".png"), image, 0o600))
		})
	}
}

const diagram = `img[src*="overview"]`

// TestPhone opens every page on a phone.
func TestPhone(t *testing.T) {
	ctx, b := start(t)
	require.NoError(t, chromedp.Do(ctx, phone))
	for _, path := range slices.Sorted(maps.Keys(documents(t))) {
		t.Run(path, func(t *testing.T) {
			b.open(ctx, t, path)
		})
	}
	// The text of a diagram that is as small as the screen cannot be read.
	t.Run("diagram", func(t *testing.T) {
		b.open(ctx, t, "/", chromedp.WaitVisible(chromedp.CSS(diagram)))
		width, err := chromedp.Run(ctx, chromedp.JavascriptAttribute[int](chromedp.CSS(diagram), "width"))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, width, 700)
	})
}
