# Written by scripts/reference. Change the code instead.
complete --command turnbridge --no-files --arguments "(env _TURNBRIDGE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS=(commandline -cp) turnbridge)" --condition "env _TURNBRIDGE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=is-args _TYPER_COMPLETE_ARGS=(commandline -cp) turnbridge"
