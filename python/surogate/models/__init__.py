"""The shipped models, each as its paper's figure. models/*.json are what they build."""
