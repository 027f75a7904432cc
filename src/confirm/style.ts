import { hash } from 'node:crypto';

/** The one stylesheet, written into each page; the content policy allows exactly this text. */
export const STYLE = `
:root{color-scheme:light dark;--page:#f3f5f7;--card:#fff;--line:#d5dae0;--field:#7a8490;--text:#1a1f26;--soft:#525c68;--main:#1d5bb8;--main-hover:#174a97;--on-main:#fff;--tint:#eef3fa;--warn:#fff6e0;--warn-line:#b97a00;--bad:#fdecea;--bad-line:#b3261e;--good:#1b7340;--focus:#0b57d0}
@media (prefers-color-scheme:dark){:root{--page:#11151a;--card:#1a2027;--line:#333c47;--field:#8792a0;--text:#e8ecf1;--soft:#aab4c0;--main:#8fbcff;--main-hover:#b3d2ff;--on-main:#0b1b33;--tint:#202a36;--warn:#2f2713;--warn-line:#e0a93a;--bad:#3a1e1c;--bad-line:#ff8a80;--good:#7ddba0;--focus:#a8ccff}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;min-height:100vh;display:flex;flex-direction:column;align-items:center;padding:1rem;background:var(--page);color:var(--text);font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;overflow-wrap:anywhere}
.brand{display:flex;align-items:center;gap:.5rem;width:100%;max-width:30rem;padding:.25rem .25rem .75rem;color:var(--soft);font-weight:600}
.brand svg{width:1.4rem;height:1.4rem;flex:none}
main{width:100%;max-width:30rem;background:var(--card);border:1px solid var(--line);border-radius:.9rem;padding:1.25rem}
h1{margin:0 0 .5rem;font-size:1.5rem;line-height:1.25}
h2{margin:1.25rem 0 .25rem;font-size:1rem}
p{margin:0 0 1rem}
.step,.hint,.soft{color:var(--soft);font-size:.9rem}
.step{margin:0 0 .25rem}
.hint{margin:.35rem 0 0}
label{display:block;font-weight:600;margin:1rem 0 .35rem}
input[type=text],input[type=password]{display:block;width:100%;min-height:3rem;padding:.5rem .75rem;font:inherit;color:inherit;background:var(--card);border:1px solid var(--field);border-radius:.5rem}
input.code{font:600 1.5rem/1.2 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.12em;text-transform:uppercase;text-align:center;min-height:3.5rem}
input[aria-invalid]{border-color:var(--bad-line);border-width:2px}
button,.button{display:block;width:100%;min-height:3rem;margin:1.25rem 0 0;padding:.6rem 1rem;font:inherit;font-weight:600;text-align:center;text-decoration:none;color:var(--on-main);background:var(--main);border:1px solid var(--main);border-radius:.5rem;cursor:pointer}
button:hover,.button:hover{background:var(--main-hover);border-color:var(--main-hover)}
button.second,.button.second{color:var(--text);background:transparent;border-color:var(--field)}
button.second:hover,.button.second:hover{background:var(--tint)}
button.link{display:inline-block;width:auto;min-height:2.75rem;margin:0;padding:.25rem 0;color:var(--main);background:none;border:0;text-decoration:underline;text-underline-offset:.2em}
button.link:hover{background:none;text-decoration-thickness:2px}
a{color:var(--main);text-underline-offset:.2em}
a.quiet{display:inline-block;padding:.6rem 0}
:focus-visible{outline:3px solid var(--focus);outline-offset:2px}
.note{margin:1rem 0 0;padding:.7rem .9rem;border-left:4px solid var(--warn-line);border-radius:.35rem;background:var(--warn)}
.note.bad{border-color:var(--bad-line);background:var(--bad)}
.compare{margin:1rem 0 0;padding:.8rem;border-radius:.6rem;background:var(--tint);text-align:center}
.compare h2{margin:0;font-size:.9rem;color:var(--soft)}
.compare .value{margin:.1rem 0;font:600 1.75rem/1.3 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;letter-spacing:.08em}
.compare .hint{margin:0}
ul{margin:.25rem 0 0;padding:0 0 0 1.25rem}
li{padding:.1rem 0}
details{margin:.5rem 0 0;font-size:.9rem;color:var(--soft)}
summary{cursor:pointer;padding:.6rem 0;min-height:2.75rem}
dl{margin:1rem 0 0;border-top:1px solid var(--line)}
dl div{display:flex;flex-wrap:wrap;gap:0 1rem;padding:.5rem 0;border-bottom:1px solid var(--line)}
dt{color:var(--soft);min-width:7rem}
dd{margin:0;flex:1 1 10rem}
time{white-space:nowrap}
.choice{display:flex;flex-direction:column;gap:.75rem;margin:1.25rem 0 0}
.choice form{flex:1}
.choice button{margin:0}
.who{display:flex;flex-wrap:wrap;align-items:center;justify-content:space-between;gap:0 1rem;margin:1.25rem 0 0;padding:.5rem 0 0;border-top:1px solid var(--line)}
.or{display:flex;align-items:center;gap:.75rem;margin:1.25rem 0 0;color:var(--soft);font-size:.9rem}
.or::before,.or::after{content:"";flex:1;border-top:1px solid var(--line)}
.or+form button{margin-top:1rem}
.mark{display:block;width:3rem;height:3rem;margin:0 0 .75rem}
.mark.good{color:var(--good)}
.mark.quiet{color:var(--soft)}
@media (min-width:40rem){body{padding-top:8vh}main{padding:2rem}.choice{flex-direction:row}}
`;

export const STYLE_SOURCE = `'sha256-${hash('sha256', STYLE, 'base64')}'`;
