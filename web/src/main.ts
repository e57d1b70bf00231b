import { mount } from "svelte";
import { keepPage } from "./app/worker";
import Gate from "./ui/Gate.svelte";
import "./ui/base.css";

const target = document.getElementById("app");
if (!target) throw new Error("index.html has no #app");
mount(Gate, { target });
addEventListener("load", keepPage, { once: true });
