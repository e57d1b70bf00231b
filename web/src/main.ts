import { mount } from "svelte";
import { keepPage } from "./app/worker";
import App from "./ui/App.svelte";
import "./ui/base.css";

const target = document.getElementById("app");
if (!target) throw new Error("index.html has no #app");
mount(App, { target });
addEventListener("load", keepPage, { once: true });
