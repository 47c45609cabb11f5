// Entry of every page.

import { installActions } from "./actions.js";
import { installLine, protectReaders } from "./live.js";
import { keepTimes } from "./times.js";

installLine();
protectReaders();
keepTimes();
installActions();

if (document.querySelector("[data-chart]")) import("./charts.js").then((module) => module.start());
if (document.querySelector("[data-log]")) import("./log.js").then((module) => module.start());
if (document.querySelector("[data-editor], [data-import]")) import("./editor.js").then((module) => module.start());
if (document.querySelector("[data-preview]")) import("./rollout_dialog.js").then((module) => module.start());
if (document.querySelector("[data-planner]")) import("./planner.js").then((module) => module.start());
if (document.querySelector("[data-copy-curl]")) import("./copy.js").then((module) => module.start());
if (document.getElementById("swagger-ui")) import("./docs.js").then((module) => module.start());
