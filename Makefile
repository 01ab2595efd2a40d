# Two commands: `make drive` and `make test`.
#
# Both first make a virtual environment with everything in it; the package is installed
# editable, so edits take effect at once.  Variables:
#
#   PYTHON    interpreter for the environment; a CUDA torch that it has is kept (python3)
#   VENV      the environment; an existing one is used as it is, e.g. VENV=$VIRTUAL_ENV
#   SOURCE    world, video, video:<file> or bag:<folder>
#   DURATION  seconds of driving; the embedded world waits for plans, so they may take longer
#   OUT       folder of the recording
#   ARGS      further arguments of `flashdrive drive`, `flashdrive view` or pytest
PYTHON   ?= python3
VENV     ?= .venv
SOURCE   ?= world
DURATION ?= 30
OUT      ?= out/drive
ARGS     ?=

.PHONY: help setup drive test test-clean view clean

# The ROS 2 wheels in the environment are complete: a sourced ROS 2 must not mix with them
# (to use yours, build with colcon).
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE
ifneq ($(ROS_DISTRO)$(AMENT_PREFIX_PATH),)
unexport ROS_DISTRO AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH
unexport PYTHONPATH LD_LIBRARY_PATH RMW_IMPLEMENTATION
endif

help:
	@sed -n 's/^# \{0,1\}//p; /^PYTHON/q' Makefile

setup:
	@$(PYTHON) install.py --venv '$(VENV)'

drive:
	@start=$$(date +%s); $(PYTHON) install.py --venv '$(VENV)' && \
	$(VENV)/bin/flashdrive drive --source '$(SOURCE)' --duration $(DURATION) --out '$(OUT)' $(ARGS) && \
	echo "make drive took $$(( $$(date +%s) - start )) s; on disk: $$(du -sh '$(VENV)' | cut -f1) in $(VENV)," \
	  "$$(du -sh '$(OUT)' | cut -f1) in $(OUT)"

test:
	@$(PYTHON) install.py --venv '$(VENV)' --extra test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m pytest $(ARGS)

# A clean clone in a new environment, tested and driven: what CI does, on your machine.
test-clean:
	@$(PYTHON) install.py --venv '$(VENV)' --extra test
	FLASHDRIVE_SLOW=1 $(VENV)/bin/python -m pytest test/test_clean_clone.py $(ARGS)

view:
	@$(PYTHON) install.py --venv '$(VENV)' --extra view
	@$(VENV)/bin/flashdrive view '$(OUT)' $(ARGS)

clean:
	rm -rf build install log out dist .venv *.egg-info flashdrive_ros/msg flashdrive_ros/srv flashdrive_ros/*.so
