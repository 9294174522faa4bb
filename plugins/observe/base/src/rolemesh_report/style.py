"""The style of a report: light and dark, wide and narrow. It fetches nothing."""

from rolemesh_facts.palette import css

__all__ = ["STYLE"]

STYLE = """
:root{--bg:#fff;--fg:#1c2024;--dim:#60666d;--line:#d5d9de;--soft:#f4f5f7;--hot:#c2410c}
@media(prefers-color-scheme:dark){:root{--bg:#15181b;--fg:#e4e7ea;--dim:#9aa2aa;--line:#363c43;--soft:#1e2226;
--hot:#f08a4b}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:1140px;
background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.4rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
nav,.legend{display:flex;flex-wrap:wrap;gap:0 .9rem}nav a{color:var(--dim);white-space:nowrap}
p{margin:.4rem 0;overflow-wrap:anywhere}
.dim,.s{color:var(--dim);font-size:.85em}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.92em}th,td{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
th{color:var(--dim);font-weight:500;border-bottom:1px solid var(--line)}.n{text-align:right}
td{overflow-wrap:anywhere;min-width:4rem}.wide td{overflow-wrap:break-word}
pre{background:var(--soft);padding:.7rem;overflow-x:auto;font-size:.82em;max-height:40rem}
.cards{display:flex;flex-wrap:wrap;gap:.6rem}.cards div{background:var(--soft);padding:.5rem .9rem;border-radius:6px}
.cards b{display:block;font-size:1.15rem}
.note{border-left:4px solid var(--hot);padding:.3rem .8rem;margin:.6rem 0;background:var(--soft)}
.curves{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0}
.legend span{font-size:.85em;white-space:nowrap}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}
svg{display:block}.wide svg{max-width:100%;height:auto}.wide svg.large{min-width:40rem}
svg text{fill:var(--fg);font:13px system-ui,sans-serif}svg text.s{fill:var(--dim);font-size:11px}
svg text.b{font-weight:600}svg text.m{text-anchor:middle;paint-order:stroke;stroke:var(--bg);stroke-width:4px}
svg text.e{text-anchor:end}
svg text.on{font-size:12px}
svg text.w{fill:var(--hot)}
.op{fill:var(--soft);stroke:var(--line)}.op.hot{fill:var(--hot);stroke:var(--hot)}
.edge{fill:none;stroke:var(--dim);stroke-width:1.4}.head{fill:var(--dim)}.edge.hot{stroke:var(--hot);stroke-width:3}
.head.hot{fill:var(--hot)}
.none{fill:var(--soft)}.recovery{fill:var(--hot);fill-opacity:.15}.mark{stroke:var(--hot);stroke-width:1.5}
.recovery.resize{fill:var(--computing)}.mark.resize{stroke:var(--computing)}
.axis{fill:none;stroke:var(--line)}.raw{fill:none;stroke:var(--computing);stroke-opacity:.35}
.raw.alone{stroke-opacity:1}.mean{fill:none;stroke:var(--computing);stroke-width:2}
""" + css("fill-")
