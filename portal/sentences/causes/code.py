"""What Python and shells could not find, read or run."""

import shlex
from collections.abc import Sequence

from portal.sentences.causes.explanation import Explanation, cause

OWN_EXCEPTION = "The message is that of the code or of a library: do what it asks for."
HINTS = {
    "AssertionError": "The condition of an assert does not hold: check the values in it, and the data they come from.",
    "AttributeError": "The object has no such attribute: it may be of another type than the code expects, or None.",
    "EOFError": "The input ended too soon: a file is incomplete.",
    "IndexError": "An index is not below the size: indexes and labels begin at 0, so the last is the size less 1.",
    "KeyError": "There is no such key: check its spelling and where it should be set, or give a default with .get(key, default).",
    "NameError": "A name is used that was never set: check its spelling, and that it is set before this line.",
    "NotImplementedError": "This part of the code, or of a library, does not exist for this case: choose another way to do it.",
    "TypeError": "A value has another type than the code expects: compare the message with the values at that line.",
    "UnboundLocalError": "A variable is used before it is set: set it before the branch or loop that may be skipped.",
    "ValueError": "A value is not one that the code can use: correct it in the arguments or the data, or skip it.",
    "ZeroDivisionError": "A number is divided by 0: something that is counted there is empty.",
}
"""What exceptions of Python itself mean."""
LAUNCHERS = {"accelerate", "deepspeed", "fabric", "horovodrun", "mpiexec", "mpirun", "orterun", "srun", "torchrun"}
"""Commands in place of which a job has its launcher."""
SCHEDULERS = {"sbatch", "salloc", "qsub", "bsub"}
"""Commands that submit jobs elsewhere."""

ACTIVATORS = {"activate", "conda", "mamba", "micromamba", "module", "workon", "pyenv"}
"""Commands and files that switch to packages which no job has."""

OWN_FILE = "If it is a file of yours, upload it with the code."


@cause
def import_error(
    module: str = "",
    environments: Sequence[str] = (),
    package: str = "",
    environment: str = "",
    elsewhere: str = "",
    folder: str = "",
    beside: Sequence[str] = (),
    offered: str = "known",
) -> Explanation:
    """``offered``: what the form for a new job offers to install: a *known* package, a *guessed* one of that name, or nothing."""
    if not module:
        return Explanation(
            "An import failed",
            "Check that your code fits the versions in this environment; its page lists them.",
        )
    if elsewhere:
        return Explanation(
            f"The module {module} was not found",
            f"The upload has {elsewhere}. Imports start at the top of the upload, in src and in the folder of the entry: "
            + (f"give the job the environment variable PYTHONPATH={folder}, " if folder else "")
            + "import it by its path from there, with dots, or move it.",
        )
    where = f" in the environment {environment}" if environment else ""
    called = package or module.partition(".")[0]
    others = f" beside {' and '.join(beside)}" if beside else ""
    if environments:
        advice = f"Choose the environment {' or '.join(environments)}, which has it."
    elif offered == "known":
        advice = f"{OWN_FILE} If not, choose “Duplicate and edit”: the form offers to install {called}{others}."
    elif offered == "guessed":
        advice = f"{OWN_FILE} If not, choose “Duplicate and edit”: the form can install a package of that name{others}."
    else:
        advice = (
            f"{OWN_FILE} If it comes with a package, make an environment with that package (Environments, New environment), and "
            "choose it."
        )
    is_package = environments or offered
    return Explanation(
        f"The package {module} is missing{where}" if is_package else f"The module {module} was not found", advice
    )


@cause
def shadowed(module: str, file: str) -> Explanation:
    return Explanation(
        f"A file of the upload hides the package {module}",
        f"Rename {file}: Python imports it instead of the package {module}.",
    )


@cause
def circular_import(module: str) -> Explanation:
    return Explanation(
        f"{module} was imported while it was still being read",
        "Two modules import each other. Move what both need into a third one, or import inside the function that needs it.",
    )


@cause
def relative_import(module: str = "", plain_command: bool = False, file: str = "") -> Explanation:
    """``file``: one that is in no package, or that another file imports without its package."""
    if file:
        return Explanation(
            "A relative import leads to no package",
            f"Python read {file} without a package, or with one that does not reach so far. Import without the leading dots, by "
            "the path from the top of the upload.",
        )
    start = f"-m {module}" if module else "-m with the name of its module"
    what = f"the command line python {start}, with its arguments" if plain_command else f"the entry {start}"
    return Explanation(
        "A file with relative imports was started as a script",
        f"Start it as a module: make {what}. Or import without the leading dot.",
    )


@cause
def installs_packages(packages: Sequence[str] = ()) -> Explanation:
    title = "It tried to install packages, which a job cannot do"
    if packages:
        return Explanation(
            title,
            f"Remove that part of the command, and make an environment with {', '.join(packages)}, under Environments > New "
            "environment. Then submit the job with it.",
        )
    return Explanation(
        title,
        "Remove that line. List the packages in a requirements.txt and upload it with the code: the form for a new job offers to "
        "install them.",
    )


@cause
def missing_library(library: str) -> Explanation:
    advice = f"It is not a Python package. Ask an admin to install {library} on the nodes, or in their base image."
    if library.startswith(("libGL", "libgthread", "libSM", "libXext", "libXrender")):
        advice = "Use the package opencv-python-headless, which does not need it, in place of opencv-python. Or ask an admin."
    return Explanation(f"The system library {library} is missing", advice)


@cause
def syntax_error(
    place: str = "", of_notebook: bool = False, encoding: bool = False, indentation: bool = False
) -> Explanation:
    if of_notebook:
        advice = "Lines that begin with ! or % belong to notebooks: remove them, or upload the notebook itself, which is converted."
    elif encoding:
        advice = "Save the file as UTF-8 and upload the code again."
    elif indentation:
        advice = "Indent the line as the lines around it, with spaces only, and upload the code again."
    else:
        advice = "Correct the line and upload the code again. If it is valid in a newer Python, choose an environment that has it."
    return Explanation(f"Python could not read {place or 'the code'}", advice)


@cause
def file_not_found(
    file: str = "",
    entry: str = "",
    elsewhere: str = "",
    other_computer: bool = False,
    backslashes: bool = False,
    folder: str = "",
    plain_command: bool = False,
) -> Explanation:
    if entry and plain_command:
        what = f"write {elsewhere}, as the upload has it," if elsewhere else "write the path of an uploaded file"
        return Explanation(
            f"The file {entry} was not there",
            f"Choose “Duplicate and edit” and {what} in the command line. It starts at the top of the upload.",
        )
    if entry:
        return Explanation(f"The file {entry} was not there", "Choose one of the uploaded files as the entry.")
    if backslashes:
        advice = (
            f"The upload has it as {elsewhere}. Only Windows separates folders by \\: write / in paths, which Windows accepts too, "
            "or use pathlib."
        )
    elif folder:
        advice = (
            f"The upload has it as {elsewhere}. A job starts at the top of the upload: use that path, one relative to __file__, "
            f"or begin a plain command with cd {shlex.quote(folder)} &&, so that the paths start there."
        )
    elif elsewhere:
        advice = f"The upload has it as {elsewhere}. A job starts at the top of the upload: use that path, or one relative to __file__."
    elif other_computer:
        advice = (
            "That path is of another computer. Upload the file with the code and use its path within the upload, or ask an admin "
            "to put it under /data."
        )
    else:
        advice = (
            "Upload it with the code (its path starts at the top of the upload) or check its name, capital letters included. If "
            "the code writes it first, write it where it is read."
        )
    return Explanation(f"The file {file} was not there", advice)


@cause
def folder_missing(
    folder: str, other_computer: bool = False, entered: bool = False, elsewhere: str = ""
) -> Explanation:
    """``entered``: the code did not write into it, but went there, or looked for what is in it."""
    if entered and elsewhere:
        advice = f"The upload has it as {elsewhere}. A job starts at the top of the upload: use that path."
    elif entered and other_computer:
        advice = (
            "That path is of another computer. A job starts at the top of the upload: upload the folder with the code and use its "
            "path there."
        )
    elif entered:
        advice = (
            "A job starts at the top of the upload, where there is no such folder: check its name, capital letters included. An "
            "upload may lack folders that are empty: create one first, with mkdir -p."
        )
    elif other_computer:
        advice = (
            "The code writes into it, and that path is of another computer. Write into the folder that the environment variable "
            "SCHEDULEARN_OUTPUTS names: its files are kept."
        )
    else:
        advice = (
            f"The code writes into it: create it first, with os.makedirs({folder!r}, exist_ok=True). An upload may lack "
            "folders that are empty."
        )
    return Explanation(f"The folder {folder} was not there", advice)


@cause
def no_terminal() -> Explanation:
    return Explanation(
        "The code needs a terminal, and a job has none",
        "Take the width from shutil.get_terminal_size(), which has a default, and answers from arguments instead of input(). As a plain "
        'command, script -qec "python train.py" /dev/null gives the program a terminal, where the environment has script.',
    )


@cause
def arguments() -> Explanation:
    return Explanation(
        "The script did not accept its arguments",
        "Choose “Duplicate and edit” and add what the message asks for to the command line or the arguments of the job; --help as the "
        "only argument prints all that exist.",
    )


@cause
def line_endings() -> Explanation:
    return Explanation(
        "A shell script has Windows line endings",
        "Save it with Unix line endings (LF; dos2unix does that) and upload it again: each line ends with a character that does not "
        "belong to the command.",
    )


@cause
def shell_syntax(script: str = "") -> Explanation:
    what = f"the script {script}" if script else "the command line"
    return Explanation(
        f"A shell could not read {what}",
        "Put names with spaces, brackets or other special characters into quotes, and close each quote, bracket, if and loop.",
    )


@cause
def input_needed() -> Explanation:
    return Explanation(
        "The code asked for input, which a job cannot give",
        "Use an argument or an environment variable instead of input(), or write the answers into the command line: "
        "printf 'first\\nsecond\\n' | python and the file.",
    )


@cause
def command_not_found(command: str, environments: Sequence[str] = (), file: str = "") -> Explanation:
    if command.rpartition("/")[2] in ACTIVATORS:
        advice = (
            "A job has the packages of its environment, and uploads have no virtual environments: remove the line with "
            f"{command}. Upload the list of packages, and the form for a new job offers to install them."
        )
    elif file:
        advice = f"A name with spaces needs quotes: write {shlex.quote(file)}, for a Python file with python before it."
    elif environments:
        advice = f"Choose the environment {' or '.join(environments)}, which has {command}."
    elif command in LAUNCHERS:
        advice = (
            f"Choose the launcher torchrun or Horovod for the job, with the Python file as the entry, in place of {command}. "
            "“Duplicate and edit” can translate its line."
        )
    elif command in SCHEDULERS:
        advice = (
            f"There is no other scheduler here: enter as the command line what the script that {command} submits runs."
        )
    elif "/" in command:
        advice = (
            "Check its path, which starts at the top of the upload, and upload the file if it is missing. If the script writes "
            "it, create its folder first, with mkdir -p."
        )
    else:
        advice = (
            "Start Python programs with python and their file. If it comes with a package, make an environment with that "
            "package (Environments, New environment), and choose it."
        )
    return Explanation(f"The command {command} was not found", advice)


@cause
def not_executable(file: str) -> Explanation:
    runs = f"python {file}" if file.endswith(".py") else f"bash {file}"
    return Explanation(
        f"{file} is not executable",
        f"Start it with {runs}, or make it executable (chmod +x) before you upload it.",
    )


@cause
def bad_interpreter(file: str, interpreter: str = "") -> Explanation:
    what = f", {interpreter}," if interpreter else ""
    return Explanation(
        f"The program that {file} names in its first line{what} is not there",
        f"Change the first line of {file} to #!/usr/bin/env python3 (or bash), or start it with python or bash before its name.",
    )


@cause
def interrupted() -> Explanation:
    return Explanation(
        "It was interrupted by SIGINT (KeyboardInterrupt)",
        "Schedulearn does not send SIGINT, so the code did: look for a limit of its own that raises it, and raise or remove that.",
    )


@cause
def exception(name: str, place: str = "", suggestion: str = "") -> Explanation:
    where = f"Look at {place}" if place else "Look at the line above the message in the log"
    hint = f"Python suggests {suggestion}: check the spelling." if suggestion else HINTS.get(name, OWN_EXCEPTION)
    return Explanation(f"The code raised {name}", f"{hint} {where}; the log has the calls that led there.")


@cause
def signal(name: str) -> Explanation:
    sent = {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGXCPU"}
    if name in sent:
        advice = "The code or a program in it sent that signal: look at the last lines, for a limit or a watchdog of its own."
    elif name == "SIGABRT":
        advice = "A library gave up; its message has the reason. If there is none, run it once on one GPU."
    else:
        advice = "A crash in compiled code. Run it once on one GPU with the variable PYTHONFAULTHANDLER=1: the log then shows the line."
    return Explanation(f"It was ended by {name}", advice)


@cause
def exit_code(number: int, quoted: bool | None = None) -> Explanation:
    if quoted is None:
        advice = "The code chose this exit code. Its last lines in the log usually give the reason."
    elif quoted:
        advice = "The code ended itself after these lines: do what they ask for. If they give no reason, look for sys.exit in it."
    else:
        advice = "The code ended itself without a message: look for sys.exit and os._exit in it."
    return Explanation(f"It ended with exit code {number}", advice)


@cause
def unknown() -> Explanation:
    return Explanation(
        "It ended without a reason",
        "Look at the end of the log; submit it again if there is no error.",
    )
