"""
The arm's table as MJCF: four joints, a parallel gripper, two cans, a tray, a drawer.

Written here rather than taken from a package: models such as MuJoCo Menagerie's Franka or
gymnasium-robotics' Fetch are made of meshes (tens of MB) and need a GPU or OpenGL to be seen
at a useful speed.  Primitive geoms keep this one at no weight, and its kinematics closed.
"""
from __future__ import annotations

from .kinematics import FORE_M, SHOULDER_M, TOOL_M, UPPER_M

JOINTS = ('yaw', 'shoulder', 'elbow', 'wrist')
GRIPPER = 'gripper'
CAN_RADIUS_M, CAN_HALF_M = 0.02, 0.03
COLOURS = {'red': (0.85, 0.12, 0.1), 'green': (0.1, 0.65, 0.2), 'blue': (0.12, 0.25, 0.85),
           'yellow': (0.95, 0.8, 0.1)}
DRAWER_M = 0.13
"""Travel of the drawer."""
POST_X_M = -0.115
"""The handle's post from the middle of the cabinet, the drawer closed."""
FINGER_M = 0.042
"""Travel of each finger."""
TIMESTEP_S = 1 / 300

_CAN = """
<body name="can{i}" pos="0.3 {y} {half}"><freejoint/>
 <geom name="can{i}" type="cylinder" size="{radius} {half}" mass="0.05" friction="1.5 0.02 0.001"
  condim="4"/></body>"""
_FINGER = """
<body name="finger_{side}" pos="{x} 0 0">
 <joint name="finger_{side}" type="slide" axis="0 {sign} 0" range="0 {travel}" damping="5"/>
 <geom type="box" size="0.03 0.006 0.011" pos="0 {y} 0" rgba="0.15 0.15 0.17 1" mass="0.03"
  friction="2 0.02 0.001" condim="4"/></body>"""


def mjcf() -> str:
    """Return the scene as MJCF text."""
    cans = ''.join(_CAN.format(i=i, y=0.1 * i, half=CAN_HALF_M, radius=CAN_RADIUS_M)
                   for i in range(2))
    fingers = ''.join(_FINGER.format(side=side, sign=sign, x=TOOL_M - 0.02, y=sign * 0.006,
                                     travel=FINGER_M)
                      for side, sign in (('left', 1), ('right', -1)))
    return f"""
<mujoco model="arm">
<compiler angle="radian"/>
<option timestep="{TIMESTEP_S}" integrator="implicitfast" cone="elliptic" impratio="10"/>
<worldbody>
<geom name="table" type="box" size="0.5 0.6 0.02" pos="0.3 0 -0.02" rgba="0.55 0.5 0.42 1"/>
<geom type="cylinder" size="0.05 {SHOULDER_M / 2 - 0.02}" pos="0 0 {SHOULDER_M / 2 - 0.02}"
 rgba="0.3 0.3 0.32 1" contype="0" conaffinity="0"/>
<body name="shoulder" pos="0 0 {SHOULDER_M}" gravcomp="1">
 <joint name="yaw" axis="0 0 1" range="-1.6 1.6" damping="2" armature="0.05"/>
 <geom type="sphere" size="0.04" rgba="0.9 0.5 0.15 1" mass="0.5" contype="0" conaffinity="0"/>
 <body gravcomp="1">
  <joint name="shoulder" axis="0 -1 0" range="-0.6 2.4" damping="2" armature="0.05"/>
  <geom type="capsule" fromto="0 0 0 {UPPER_M} 0 0" size="0.024" rgba="0.9 0.5 0.15 1" mass="0.4"
   contype="0" conaffinity="0"/>
  <body pos="{UPPER_M} 0 0" gravcomp="1">
   <joint name="elbow" axis="0 -1 0" range="-2.9 0.1" damping="2" armature="0.05"/>
   <geom type="capsule" fromto="0 0 0 {FORE_M} 0 0" size="0.02" rgba="0.95 0.6 0.25 1" mass="0.3"
    contype="0" conaffinity="0"/>
   <body name="hand" pos="{FORE_M} 0 0" gravcomp="1">
    <joint name="wrist" axis="0 -1 0" range="-2.6 1.2" damping="1" armature="0.02"/>
    <geom type="box" size="0.02 0.05 0.015" pos="0.04 0 0" rgba="0.3 0.3 0.34 1" mass="0.1"
     contype="0" conaffinity="0"/>{fingers}
   </body></body></body></body>
<body name="tray" pos="0.3 -0.24 0.003">
 <geom type="box" size="0.055 0.055 0.003" rgba="0.92 0.92 0.95 1"/></body>
<body name="cabinet" pos="0.42 0.24 0">
 <geom type="box" size="0.07 0.005 0.04" pos="0 0.065 0.04" rgba="0.35 0.22 0.12 1"/>
 <geom type="box" size="0.07 0.005 0.04" pos="0 -0.065 0.04" rgba="0.35 0.22 0.12 1"/>
 <geom type="box" size="0.07 0.07 0.003" pos="0 0 0.083" rgba="0.4 0.26 0.15 1"/>
 <body name="drawer" pos="0 0 0.036" gravcomp="1">
  <joint name="drawer" type="slide" axis="-1 0 0" range="0 {DRAWER_M}" damping="3"
   frictionloss="0.4"/>
  <geom type="box" size="0.065 0.055 0.024" rgba="0.7 0.55 0.35 1" mass="0.3"/>
  <geom type="box" size="0.025 0.006 0.004" pos="-0.09 0 -0.02" rgba="0.2 0.2 0.2 1" mass="0.02"/>
  <geom name="post" type="cylinder" size="0.009 0.024" pos="{POST_X_M} 0 0"
   rgba="0.75 0.1 0.6 1" mass="0.02" friction="2 0.02 0.001" condim="4"/>
 </body></body>{cans}
</worldbody>
<equality><joint joint1="finger_left" joint2="finger_right" solref="0.005 1"/></equality>
<actuator>
 <position joint="yaw" kp="120" kv="12"/><position joint="shoulder" kp="160" kv="14"/>
 <position joint="elbow" kp="120" kv="10"/><position joint="wrist" kp="50" kv="4"/>
 <position joint="finger_left" kp="300" kv="10" forcerange="-8 8"/>
</actuator>
</mujoco>"""
