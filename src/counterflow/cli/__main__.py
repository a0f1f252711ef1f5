from counterflow.cli import main

main()
