{% include cookiecutter.kind ~ '/plugin.py' -%}
