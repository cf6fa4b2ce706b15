// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// The website is the Markdown of this repository, as it is. This file maps its links, and reads the sidebar from docs/README.md.
import {existsSync, readFileSync} from 'node:fs'
import {posix} from 'node:path'
import {defineConfig} from 'vitepress'

const content = new URL('../content/', import.meta.url).pathname
const version = process.env.SITE_VERSION!
const releases = process.env.SITE_RELEASES!.split(' ').filter(Boolean)
// The site of the main branch, seen from the base of this version.
const main = version === 'main' ? '/' : '/../'
const repository = 'https://github.com/prebind/prebind'

// The page of a file: README.md is the index of its directory.
const page = (file: string) => file.replace(/README\.md$/, 'index.md')

// Where a relative link in the file leads to: a page, or a file of the repository.
function resolve(file: string, link: string): string {
	const [path, hash] = link.split('#')
	if (/^[a-z]+:/.test(link) || path === '') return link
	const target = posix.join(posix.dirname(file), path)
	const suffix = hash ? '#' + hash : ''
	for (const candidate of [target, target + '.md'])
		if (candidate.endsWith('.md') && existsSync(content + candidate)) return '/' + page(candidate) + suffix
	return `${repository}/blob/${version}/${target}${suffix}`
}

const read = (file: string) => readFileSync(content + file, 'utf8')
const title = (file: string) => read(file).match(/^# (.*)/m)?.[1]

// The links of a part of an index, as items of the sidebar. Below another index are the pages of its directory.
function items(file: string, text: string, within = ''): object[] {
	return [...text.matchAll(/\[([^\]]+)\]\(([^)]+)\)/g)].flatMap(([, name, path]) => {
		const link = resolve(file, path)
		const source = posix.join(posix.dirname(file), path)
		if (!link.startsWith('/') || link.includes('#') || !source.startsWith(within)) return []
		const children = source.endsWith('/README.md') ? items(source, read(source), posix.dirname(source)) : []
		// Names of plugins and manifests stay as they are.
		const isName = name === title(source) || name.endsWith('.yaml')
		return {
			text: name.endsWith('.md') ? title(source) : isName ? name : name[0].toUpperCase() + name.slice(1),
			link,
			...(children.length && {items: children, collapsed: true}),
		}
	})
}

function sidebar() {
	const [, ...sections] = read('docs/README.md').split(/^## /m)
	return sections.map(section => ({text: section.split('\n')[0], items: items('docs/README.md', section)}))
}

// The bar chart of a Mermaid diagram, without Mermaid. Labels contain the values.
function chart(source: string, escape: (text: string) => string): string {
	const title = source.match(/title "(.*)"/)
	const labels = source.match(/x-axis (\[.*\])/)
	const bars = source.match(/bar (\[.*\])/)
	if (!title || !labels || !bars) throw new Error('only bar charts are supported:\n' + source)
	const values: number[] = JSON.parse(bars[1])
	const rows = JSON.parse(labels[1]).map((label: string, i: number) =>
		`<div>${escape(label)}<span style="width:${100 * values[i] / Math.max(...values)}%"></span></div>`)
	return `<figure class="chart"><figcaption>${escape(title[1])}</figcaption>${rows.join('')}</figure>`
}

export default defineConfig({
	title: 'Prebind',
	description: 'A Kubernetes admission webhook for Bindings, with every scheduler',
	base: process.env.SITE_BASE,
	srcDir: 'content',
	// In order, so that every build has the same search index.
	buildConcurrency: 1,
	rewrites: page,
	head: [['link', {rel: 'icon', href: process.env.SITE_BASE + 'logo.svg'}]],
	vite: {publicDir: '../.vitepress/public', build: {assetsInlineLimit: 0, chunkSizeWarningLimit: 2000}},
	markdown: {
		languageAlias: {cel: 'javascript'},
		// As GitHub does.
		anchor: {slugify: text => text.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}_ -]/gu, '').replaceAll(' ', '-')},
		config(md) {
			md.core.ruler.push('indented', ({tokens}) => {
				for (const token of tokens) if (token.type === 'code_block') Object.assign(token, {type: 'fence', info: 'sh'})
			})
			md.core.ruler.push('links', ({tokens, env}) => {
				for (const token of tokens.flatMap(token => token.children ?? [])) {
					if (token.type === 'link_open') token.attrSet('href', resolve(env.relativePath, token.attrGet('href')!))
				}
			})
			// The first paragraph of README.md is the tagline of the front page.
			md.core.ruler.push('front', ({tokens, env}) => {
				if (env.relativePath !== 'index.md') return
				const [, name, , , tagline] = tokens.splice(0, 6)
				env.frontmatter = {
					layout: 'home',
					hero: {
						name: name.content,
						tagline: md.renderer.render(tagline.children!, md.options, env).replaceAll('\n', ' '),
						actions: [
							{text: 'Install', link: '/docs/install.md'},
							{text: 'Documentation', link: '/docs/', theme: 'alt'},
							{text: 'GitHub', link: repository, theme: 'alt'},
						],
					},
				}
			})
			const fence = md.renderer.rules.fence!
			md.renderer.rules.fence = (tokens, i, ...rest) => {
				const token = tokens[i]
				if (token.info === 'mermaid') return chart(token.content, md.utils.escapeHtml)
				// The copy button removes the prompts of shell commands.
				if (token.info === 'console' && /^(\$ .*\n|  .*\n)+$/.test(token.content)) token.info = 'sh'
				return fence(tokens, i, ...rest)
			}
			// A wide table or image scrolls, not the page.
			md.renderer.rules.table_open = () => '<div class="wide"><table tabindex="0">'
			md.renderer.rules.table_close = () => '</table></div>'
			const image = md.renderer.rules.image!
			md.renderer.rules.image = (...args) => `<span class="wide" tabindex="0">${image(...args)}</span>`
		},
	},
	themeConfig: {
		logo: '/logo.svg',
		nav: [
			{text: 'Docs', link: '/docs/', activeMatch: '^/docs/(?!runbooks|performance)'},
			{text: 'Runbooks', link: '/docs/runbooks/', activeMatch: '^/docs/runbooks/'},
			{text: 'Performance', link: '/docs/performance/', activeMatch: '^/docs/performance/'},
			{text: 'Playground', link: main + 'playground/', target: '_self'},
			{
				text: version,
				items: ['main', ...releases].map(v => ({
					text: v,
					link: main + (v === 'main' ? '' : v + '/'),
					target: '_self',
				})),
			},
		],
		sidebar: sidebar(),
		outline: [2, 3],
		search: {provider: 'local', options: {detailedView: true}},
		socialLinks: [{icon: 'github', link: repository}],
		editLink: version === 'main' && {pattern: repository + '/edit/main/:path'},
		footer: {message: 'Apache-2.0', copyright: 'Copyright The Prebind Authors'},
	},
})
