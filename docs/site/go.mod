// The tests of the website: its links, and its pages in a browser. It is a module of its own, so that the program's module does not
// require a client of the browser.
module github.com/prebind/prebind/docs/site

go 1.26.0

require (
	github.com/chromedp/cdproto v0.159.0
	github.com/chromedp/chromedp v0.23.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/net v0.62.0
)

require (
	github.com/go-json-experiment/json v0.0.0-20260214004413-d219187c3433 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
