import { createBaseStyle } from '../../pages/views/theme.ts';

/** The stylesheet of the console, with the colours and controls of the pages. */
export const createStylesheet = (accent: string | undefined): string => createBaseStyle(accent) + RULES;

/** `--edge` is the edge of a table where it continues. */
const RULES = `:root{--edge:rgba(20,30,45,.28)}
@media (prefers-color-scheme:dark){:root{--edge:rgba(160,180,210,.38)}}
body{font-size:.95rem}
header{background:var(--card);border-bottom:1px solid var(--line)}
.bar{display:flex;flex-wrap:wrap;align-items:center;gap:0 1.5rem;max-width:80rem;margin:0 auto;padding:.25rem 1rem}
.brand{min-height:3rem}
nav{display:flex;flex-wrap:wrap;gap:0 .25rem;order:3;width:100%}
nav a{padding:.6rem .75rem;color:var(--text);text-decoration:none;border-bottom:3px solid transparent}
nav a:hover{background:var(--tint)}
nav a[aria-current]{color:var(--main);font-weight:600;border-color:var(--main)}
.account{display:flex;flex-wrap:wrap;align-items:center;gap:0 1rem;margin-inline-start:auto;color:var(--soft);font-size:.9rem}
main{display:block;max-width:80rem;margin:0 auto;padding:1.25rem 1rem 2rem}
main:focus{outline:none}
footer{max-width:80rem;margin:0 auto;padding:0 1rem 1.5rem;color:var(--soft);font-size:.85rem}
.skip{position:absolute;left:-100rem;top:0;padding:.6rem 1rem;background:var(--card)}
.skip:focus{left:0;z-index:1}
h1{margin:0 0 .75rem;font-size:1.5rem;line-height:1.25}
h2{margin:2rem 0 .75rem;font-size:1.1rem}
p{margin:0 0 .75rem}
time{white-space:nowrap}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.9em}
.soft,.hint{color:var(--soft);font-size:.9rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1rem;box-shadow:0 1px 2px var(--shadow)}
.narrow{max-width:30rem;margin:6vh auto 0;padding:1.5rem}
.wide{max-width:50rem}
input[type=checkbox]{width:1.15rem;height:1.15rem;margin:0 .5rem 0 0;vertical-align:-.2rem}
.check{display:flex;align-items:center;min-height:2.75rem;font-weight:400;margin:0}
button.link{font-weight:400}
.narrow button{width:100%;margin:1.25rem 0 0}
.or{margin-bottom:1.25rem}
.note{margin:0 0 1rem}
.note>:last-child{margin-bottom:0}
.note h2{margin:0 0 .25rem;font-size:1rem}
.note ul{margin:0 0 .75rem;padding:0 0 0 1.25rem}
.title{display:flex;flex-wrap:wrap;align-items:baseline;justify-content:space-between;gap:0 1.5rem;margin:0 0 .75rem}
.title h1{margin:0}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:0;border:0}
.tiles div{display:flex;flex:1 1 8.5rem;flex-direction:column;gap:0;background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:.75rem 1rem}
.tiles dt{min-width:0;color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;flex:none;font-size:1.35rem;font-weight:600;line-height:1.35;font-variant-numeric:tabular-nums}
.tiles div:last-child{border-bottom:1px solid var(--line)}
.tiles small{display:block;font-size:.8rem;font-weight:400;color:var(--soft)}
.scroll{overflow-x:auto;padding:0;background:linear-gradient(90deg,var(--card) 50%,transparent) 0 0/3rem 100% no-repeat local,linear-gradient(270deg,var(--card) 50%,transparent) 100% 0/3rem 100% no-repeat local,linear-gradient(90deg,var(--edge),transparent) 0 0/1.25rem 100% no-repeat,linear-gradient(270deg,var(--edge),transparent) 100% 0/1.25rem 100% no-repeat var(--card)}
table{width:100%;border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.55rem 1rem;text-align:start;vertical-align:top;border-bottom:1px solid var(--line);overflow-wrap:normal}
tr:last-child>*{border-bottom:0}
thead th{color:var(--soft);font-size:.85rem;font-weight:600;white-space:nowrap}
tbody th{font-weight:400}
td.number,th.number{text-align:end}
.badge{display:inline-block;padding:0 .5rem;border:1px solid var(--line);border-radius:1rem;font-size:.8rem;line-height:1.5;color:var(--text);background:var(--tint);white-space:nowrap}
.badge.good{border-color:var(--good);color:var(--good);background:transparent}
.badge.warn{border-color:var(--warn-line);background:var(--warn)}
.badge.bad{border-color:var(--bad-line);background:var(--bad)}
.search{display:flex;flex-wrap:wrap;align-items:end;gap:.75rem;margin:0 0 1rem}
.search>div{flex:1 1 12rem;min-width:0}
.search>.small{flex:0 1 11rem}
.search>.hint{flex:1 0 100%;margin:-.35rem 0 0}
.rows{margin:0;padding:0;list-style:none}
.rows>li{padding:.8rem 1rem;border-bottom:1px solid var(--line)}
.rows>li:last-child{border-bottom:0}
.requests{margin:.35rem 0 0;padding:0;list-style:none}
.requests li{padding:.1rem 0}
.requests a{margin-inline-end:.5rem}
.requests .meta{display:inline-flex}
.rows details{margin:.25rem 0 0;font-size:.95rem}
.rows summary{font-weight:400;color:var(--main)}
.rows h2{margin:0;font-size:1rem;font-weight:600}
.rows p{margin:.1rem 0 0}
.list{padding:0}
.meta{display:flex;flex-wrap:wrap;gap:0 1rem;color:var(--soft);font-size:.9rem}
.line-up{display:flex;flex-wrap:wrap;align-items:baseline;gap:.1rem .75rem}
.line-up h2{margin:0}
section>.line-up{margin:0 0 .5rem}
dl{margin:.5rem 0 0}
dl div{display:flex;flex-wrap:wrap;gap:0 1rem;padding:.45rem 0;border-bottom:1px solid var(--line)}
dl div:last-child{border-bottom:0}
dt{color:var(--soft);flex:0 0 auto;min-width:9rem;max-width:100%}
dd{margin:0;flex:1 1 14rem;min-width:0}
.actions{display:flex;flex-wrap:wrap;gap:.75rem;margin:1.25rem 0 0}
.settings dt{min-width:16rem}
.settings dl{margin:0}
details{margin:0 0 .75rem}
summary{cursor:pointer;font-weight:600;min-height:2rem}
.more{margin:1rem 0 0}
@media (max-width:40rem){.settings dt,dt{min-width:7rem}th,td{padding:.5rem .75rem}.account{margin-inline-start:0;width:100%;justify-content:space-between}nav a{padding:.5rem}.search>.small{flex-basis:100%}}
@media (min-width:64rem){nav{order:0;width:auto}}
@media print{header,.search,.actions{display:none}}
`;
