// Applies the chosen theme before the first paint. A classic script, so that nothing flashes.
document.documentElement.dataset.theme = localStorage.getItem("firesteel.theme") || "auto";
